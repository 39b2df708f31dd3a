"""Text of a trace without what a terminal would obey: control characters and marks that turn the direction of writing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import polars as pl

_OBEYED: Final = r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]"
_PATTERN: Final = re.compile(f"{_OBEYED[:-1]}\ud800-\udfff]")
"""And what is half a character: a file's name in another encoding than UTF-8, as Python reads it."""


def plain(text: str) -> str:
    """``\\x1b[31mred`` -> the same with a visible ``\\x1b``: on one line, and nothing that moves a cursor."""
    return _PATTERN.sub(lambda found: _visible(found.group()), text)


def _visible(sign: str) -> str:
    code = ord(sign)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def plain_document(value: Any) -> Any:
    """A JSON value with all its texts, keys included, made plain."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {plain(str(key)): plain_document(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain_document(inner) for inner in value]
    return value


def plain_columns(events: pl.DataFrame) -> pl.DataFrame:
    """Events whose texts are plain. Distinct texts are looked at, not rows; a trace without such signs is given back as it is."""
    import polars as pl  # not on top: error lines are made plain without it

    changed: list[pl.Expr] = []
    for name, kind in events.schema.items():
        if not isinstance(kind, (pl.String, pl.Categorical)):
            continue
        distinct = events.get_column(name).unique().cast(pl.String).drop_nulls()
        odd = distinct.filter(distinct.str.contains(_OBEYED))
        if odd.len():
            old = odd.to_list()
            changed.append(pl.col(name).cast(pl.String).replace(old, [plain(text) for text in old]).cast(kind))
    return events.with_columns(changed) if changed else events
