"""What must never reach a trace: credentials in names, values, arguments and URLs; prompts; host names in clear."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

WITHHELD: Final = "<withheld>"

_SECRET_WORDS: Final = re.compile(
    r"(api)?keys?|keyfile|keystore|(access|auth|bearer|hf)?tokens?|passwords?|passwds?|passphrase|pass|pwd|secrets?|"
    r"credentials?|creds?|auth|authorization|authentication|bearer|cookies?|private|signature|sig|sas|session|jwt|"
    r"license|certs?|certificate|webhook|dsn|prompts?|headers?"
)
_COUNTING_WORDS: Final = re.compile(r"tokens|prompts|sessions")
"""Words that also name counts (``num_draft_tokens``): a number or a yes or no is kept."""

_HOST_WORDS: Final = frozenset(
    ("host", "hosts", "hostname", "hostid", "ip", "addr", "addrs", "address", "url", "master")
)
_PUBLIC_HOSTS: Final = frozenset(("localhost", "0.0.0.0", "127.0.0.1", "::", "::1", ""))

_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

_CREDENTIALS_IN_URL: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.\-]*://)[^/\s@]*@")
_SECRET_IN_QUERY: Final = re.compile(
    r"([?&;][^=&;\s]*(?:key|token|secret|passw|pwd|sig|auth|cred)[^=&;\s]*=)[^&;\s]+", re.IGNORECASE
)
_SECRET_SHAPES: Final = re.compile(
    r"\b(?:hf_|sk-|sk_|rk_|pk_|ghp_|gho_|ghs_|github_pat_|glpat-|xox[abprs]-|nvapi-|AKIA|ASIA|AIza|ya29\.|eyJ)"
    r"[A-Za-z0-9_\-./+=]{8,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*"
    r"|\b[Bb]earer\s+\S+|\b[Bb]asic\s+[A-Za-z0-9+/=]{8,}",
    re.DOTALL,
)
_ASSIGNED: Final = re.compile(
    r"([\w\-]*(?:api[_\-]?key|token|passw(?:or)?d|secret|authorization|credential)[\w\-]*[\"']?\s*[:=]\s*)[^\s,;&]+",
    re.IGNORECASE,
)


def words(name: str) -> list[str]:
    """``--admin-apiKey`` -> admin, api, key."""
    return [word.lower() for word in _WORDS.findall(name)]


def _harmless_count(value: Any) -> bool:
    if value is None or isinstance(value, (bool, int, float)):
        return True
    # a short number is a count; a long one may be a key
    return bool(re.fullmatch(r"-?\d{1,9}(\.\d+)?|true|false|none|auto", str(value).strip().lower()))


def secret_name(name: str, value: Any = None) -> bool:
    """Whether an item's name says that its value is a credential (or a prompt)."""
    parts = words(name)
    # stop_token_id and its like name a number of the vocabulary
    numbered = "id" in parts or "ids" in parts
    for word in parts:
        if _COUNTING_WORDS.fullmatch(word) or (word == "token" and numbered):
            if not _harmless_count(value):
                return True
        elif _SECRET_WORDS.fullmatch(word):
            return True
    return False


def clean_text(text: str) -> str:
    """A value without the credentials in it: those of URLs and those with a known shape."""
    text = _CREDENTIALS_IN_URL.sub(r"\1", text)
    text = _SECRET_IN_QUERY.sub(rf"\g<1>{WITHHELD}", text)
    text = _SECRET_SHAPES.sub(WITHHELD, text)
    return _ASSIGNED.sub(rf"\g<1>{WITHHELD}", text)


def _hashed_host(text: str) -> str:
    host, separator, port = text.rpartition(":") if text.count(":") == 1 else (text, "", "")
    if host.lower() in _PUBLIC_HOSTS:
        return text
    return f"host-{hashlib.sha256(host.encode()).hexdigest()[:12]}{separator}{port}"


def clean_value(name: str, value: Any) -> Any:
    """A value fit for a trace: JSON-serialisable, without secrets; hosts are hashed."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return clean_mapping(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return [clean_value(name, item) for item in value]
    text = str(value)
    if text[:1] in "{[":
        try:
            return json.dumps(clean_value(name, json.loads(text)))
        except ValueError:
            pass
    if any(word in _HOST_WORDS for word in words(name)):
        match = re.fullmatch(r"([a-zA-Z][a-zA-Z0-9+.\-]*://)?(?:[^/\s@]*@)?([^/\s]+)(/\S*)?", text)
        if match is None:
            return WITHHELD
        return f"{match[1] or ''}{_hashed_host(match[2])}"
    return clean_text(text)


def clean_mapping(items: Mapping[Any, Any]) -> dict[str, Any]:
    """A mapping without the items whose names say secret; what remains is cleaned."""
    return {
        str(name): clean_value(str(name), value) for name, value in items.items() if not secret_name(str(name), value)
    }


def clean_arguments(arguments: Sequence[str]) -> list[str]:
    """A command line without secrets: ``--api-key X`` and ``--api-key=X`` are left out, name and value."""
    cleaned: list[str] = []
    option: str | None = None
    dropping = False
    for index, argument in enumerate(arguments):
        if argument.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", argument):
            name, separator, value = argument.partition("=")
            following = arguments[index + 1] if index + 1 < len(arguments) else None
            if not separator and following is not None and not following.startswith("-"):
                value = following
            dropping = secret_name(name, value if value else None) and bool(value or separator)
            option = None if separator else name
            if dropping and separator:
                dropping = False
                continue
            if dropping:
                continue
            cleaned.append(f"{name}={clean_value(name, value)}" if separator else argument)
        elif dropping:
            continue  # an option may take several values
        else:
            cleaned.append(str(clean_value(option or "", argument)))
    return cleaned
