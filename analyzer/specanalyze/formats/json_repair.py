"""Repairs of JSON that older profilers write wrongly, limited to those whose result is certain."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

_STRING: Final = rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)'
"""A string, or the beginning of one at the end of the text, which is then not looked at again from each quote in it."""
_NUMBER_WORD: Final = re.compile(
    _STRING + rb"|(?P<word>-?\b(?:inf(?:inity)?|nan(?:\((?:ind|snan)\))?)\b(?:\(ind\))?)", re.DOTALL | re.IGNORECASE
)
_ESCAPE: Final = re.compile(rb'\\(?:["\\/bfnrt]|u(?P<hex>[0-9a-fA-F]{4})|)')
_HIGH: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")
_LOW: Final = re.compile(rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_RAW_CONTROL: Final = re.compile(rb"[\x00-\x1f]")
_IN_STRING: Final = re.compile(_STRING, re.DOTALL)

FAULTS: Final = {
    "inf": "numbers inf or nan, which JSON does not have: read as null",
    "escape": "invalid escape sequences (old PyTorch wrote paths with single backslashes): backslash doubled",
    "utf-8": "byte sequences that are not UTF-8: replaced",
    "control": "unescaped control characters in names: escaped",
    "comma": "comma behind the last event, which JSON does not allow: left out",
}
"""Kind of repair -> what was found and done, for warnings."""


def repaired(text: bytes) -> tuple[bytes, Counter[str]]:
    """JSON text with certain faults repaired.

    Whether the result is right is proven by decoding it: a repair that breaks the structure does not decode.

    Args:
        text: JSON text that a strict reader refused.

    Returns:
        The repaired text and how many of each kind of FAULTS were repaired.
    """
    counts: Counter[str] = Counter()
    try:
        text.decode()
    except UnicodeDecodeError:
        clean = text.decode(errors="replace")
        counts["utf-8"] += max(1, clean.count("�"))
        text = clean.encode()

    def escape(match: re.Match[bytes]) -> bytes:
        found = match.group()
        if found != b"\\":
            if _HIGH.fullmatch(found) and not _LOW.match(text, match.end()):
                counts["utf-8"] += 1
                return b"\\ufffd"
            if _LOW.fullmatch(found) and not _HIGH.match(text, match.start() - 6):
                counts["utf-8"] += 1
                return b"\\ufffd"
            return found
        counts["escape"] += 1
        return b"\\\\"

    text = _ESCAPE.sub(escape, text)

    def number_word(match: re.Match[bytes]) -> bytes:
        if match.group("word") is None:
            return match.group()
        counts["inf"] += 1
        return b"null"

    text = _NUMBER_WORD.sub(number_word, text)

    def control(match: re.Match[bytes]) -> bytes:
        fixed, n = _RAW_CONTROL.subn(lambda m: b"\\u%04x" % m.group()[0], match.group())
        counts["control"] += n
        return fixed

    text = _IN_STRING.sub(control, text)
    return text, +counts


def warning(file: str, counts: Counter[str]) -> str:
    """One line about the repairs of a file: ``trace.json: repaired 3 numbers inf or nan ...``."""
    return f"{file}: repaired " + "; ".join(f"{n} {FAULTS[kind]}" for kind, n in sorted(counts.items()))
