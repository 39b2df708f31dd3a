"""JSON documents with members of the wrong shape, size and type."""

from __future__ import annotations

import json
from typing import Any, Final

from dice import Dice


class Raw(str):
    """Text that goes into a document as it stands, JSON or not."""


VALUES: Final[tuple[Any, ...]] = (
    None,
    True,
    0,
    -1,
    7,
    2**31,
    2**63 - 1,
    -(2**63),
    2**63,
    2**64,
    Raw("1" + "0" * 400),
    Raw("1" + "0" * 5000),
    Raw("0.1234567891234"),
    Raw("1e400"),
    Raw("-1e-9999999999"),
    Raw("1e999999999999999999999"),
    Raw("NaN"),
    Raw("-Infinity"),
    1.5,
    9e18,
    "",
    "7",
    "9" * 5000,
    "-1",
    "1e3",
    "NaN",
    "\u0000",
    Raw('"\\ud800"'),
    Raw('"\\q"'),
    Raw('"tab\there"'),
    "\x1b[31m[bold]\u202e",
    "k" * 70_000,
    "[0, 1, 99999999999]",
    "[TP99999999999] 5",
    [],
    {},
    [1, 2, 3],
    [2**70, -1, None],
    [[[]], {"a": []}],
    {"rank": -1},
    {"": {"": None}},
    Raw("[" * 200 + "]" * 200),
    Raw("[" * 3000 + "]" * 3000),
    Raw('{"a":' * 3000 + "1" + "}" * 3000),
    Raw('"open'),
    Raw("}"),
    Raw("]"),
    Raw(""),
)


def changed(document: Any, dice: Dice) -> Any:
    """The document with one to eight values, keys or places changed."""
    for _ in range(1 + dice.below(8)):
        document = _changed_once(document, dice)
    return document


def _changed_once(document: Any, dice: Dice) -> Any:
    """Walk down to some member and replace it, leave it out, double it, or give it another key."""
    if isinstance(document, Raw) or not isinstance(document, (dict, list)) or not document or dice.one_in(12):
        return dice.pick(VALUES)
    if isinstance(document, dict):
        key = dice.pick(list(document))
        action = dice.below(10)
        if action == 9:
            return {k: v for k, v in document.items() if k != key}
        if action == 8:
            return {**document, str(dice.pick(("ts", "dur", "args", "rank", "pid", "", "traceEvents"))): document[key]}
        return {**document, key: _changed_once(document[key], dice)}
    at = dice.below(len(document))
    action = dice.below(10)
    if action == 9:
        return document[:at] + document[at + 1 :]
    if action == 8:
        return document[:at] + [document[at]] * (1 + dice.below(4)) + document[at:]
    return [*document[:at], _changed_once(document[at], dice), *document[at + 1 :]]


def text(document: Any) -> str:
    """JSON text, with what is raw put in as it stands."""
    if isinstance(document, Raw):
        return str(document)
    if isinstance(document, dict):
        return "{" + ", ".join(f"{json.dumps(str(k))}: {text(v)}" for k, v in document.items()) + "}"
    if isinstance(document, list):
        return "[" + ", ".join(map(text, document)) + "]"
    return json.dumps(document)
