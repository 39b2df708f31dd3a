"""Which words a name must hold for a pattern to match it: ``python -m specschema.required_words`` writes ``pattern_words.py``.

A trace has some dozen kernel names, the table 173 patterns, and compiling one takes longer than trying it on all of them. So a
pattern is compiled when a name holds one of its words. Words are taken from the pattern's own syntax tree; a pattern of which nothing
can be said (``None``) is always tried.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from specschema.collective_families import FAMILIES
from specschema.first_match import fingerprint
from specschema.kernel_rules import RULES

if sys.version_info >= (3, 11):
    from re import _constants as syntax  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
else:
    import sre_constants as syntax
    import sre_parse as parser

Words = tuple[str, ...]
FILE: Final = Path(__file__).with_name("pattern_words.py")
_MOST: Final = 24
"""Words of a pattern; with more, looking for them costs what they save."""
_REPEATS: Final = tuple(
    getattr(syntax, n) for n in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT") if hasattr(syntax, n)
)


def required_words(pattern: str) -> Words | None:
    """Lower-case words, one of which is in every text of ASCII that the pattern finds, whatever the case; None: unknown."""
    return _of_sequence(parser.parse(pattern, re.IGNORECASE))


def _of_sequence(items: Iterable[Any]) -> Words | None:
    """The best of what the parts of a sequence require, each of which would do."""
    found: list[Words] = []
    run = ""
    for operation, value in items:
        if operation is syntax.LITERAL:
            run += chr(value).lower()
            continue
        if run:
            found.append((run,))
            run = ""
        words = _of_item(operation, value)
        if words:
            found.append(words)
    if run:
        found.append((run,))
    return max(found, key=_worth, default=None)


def _of_item(operation: Any, value: Any) -> Words | None:
    if operation is syntax.SUBPATTERN:
        return _of_sequence(value[-1])
    if operation is syntax.BRANCH:
        branches = [_of_sequence(branch) for branch in value[1]]
        words = [word for branch in branches for word in branch or ("",)]
        return None if "" in words or len(words) > _MOST else _shortest(words)
    if operation in _REPEATS:
        least, _, inner = value
        return _of_sequence(inner) if least else None
    return None


def _shortest(words: Sequence[str]) -> Words:
    """Without words that hold another one."""
    distinct = sorted(set(words))
    return tuple(word for word in distinct if not any(other != word and other in word for other in distinct))


def _worth(words: Words) -> tuple[int, int]:
    """Long words are rare; few are quick to look for."""
    return min(map(len, words)), -len(words)


def text() -> str:
    """Source of ``pattern_words.py``."""
    lines = [
        '"""Words of the patterns of both tables, in their order; written by ``python -m specschema.required_words``."""',
        "",
        "from __future__ import annotations",
        "",
        "from typing import Final",
        "",
        "Words = tuple[tuple[str, ...] | None, ...]",
        "",
        "# fmt: off",
    ]
    families, rules = [row.pattern for row in FAMILIES], [row.pattern for row in RULES]
    at = next(place for place in range(len(rules)) if rules[place : place + len(families)] == families)
    lines += [f"FAMILIES: Final[tuple[int, Words]] = ({fingerprint(families)}, (", *_rows(families), "))"]
    lines += [f"RULES: Final[tuple[int, Words]] = ({fingerprint(rules)}, (", *_rows(rules[:at])]
    lines += ["    *FAMILIES[1],", *_rows(rules[at + len(families) :]), "))"]
    return "\n".join(lines) + "\n"


def _rows(patterns: Iterable[str]) -> list[str]:
    return [f"    {_quoted(required_words(pattern))}," for pattern in patterns]


def _quoted(words: Words | None) -> str:
    if words is None:
        return "None"
    return "(" + ", ".join('"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"' for word in words) + ",)"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
