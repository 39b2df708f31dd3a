"""steps.jsonl: one line for each (request, step), with the drafts it had, those accepted and the tokens committed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec
import polars as pl

from specanalyze.formats import bounded_json
from specanalyze.formats.plain_text import plain
from specschema.errors import TraceError

KINDS: Final = ("verify", "prefill", "decode", "idle", "dummy", "no_draft")
"""Only ``verify`` steps count for accept lengths (RULES R8)."""
_ALSO: Final = {"extend": "prefill"}
"""What SGLang calls a step -> its kind."""
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
SCHEMA: Final = pl.Schema(
    {
        "rank": pl.Int32,
        "cycle": pl.Int64,
        "request": pl.String,
        "kind": pl.String,
        "num_draft": pl.Int32,
        "num_accepted_draft": pl.Int32,
        "num_committed": pl.Int32,
    }
)


Number = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class _Step(msgspec.Struct, gc=False):
    kind: str
    cycle: Number | None = None
    rank: Number = 0
    request: str | int | None = None
    num_draft: Number | None = None
    num_accepted_draft: Number | None = None
    num_committed: Number | None = None


def read_steps(path: Path) -> pl.DataFrame:
    """Read a file of steps.

    Args:
        path: JSON lines; empty lines are skipped, unknown members ignored. ``rank`` is 0 where a line names none. Whole numbers
            may be written as 3.0 or "3", as other tools rewrite them.

    Returns:
        rank, cycle, request, kind, num_draft, num_accepted_draft, num_committed, in the order of the file; null where a line does not
        say it. ``num_accepted_draft`` is the verifier's count, ``num_committed`` the tokens that the request really got.

    Raises:
        UsageError: no such file.
        TraceError: too large, or a line that is no step, by its number.
    """
    decoder = msgspec.json.Decoder(_Step, strict=False)
    text = bounded_json.whole_file(path).removeprefix(_BYTE_ORDER_MARK)
    lines = text.splitlines()
    if lines and not text.endswith((b"\n", b"\r")) and _stops(decoder, lines[-1]):
        raise TraceError(f"{path.name} ends early, inside line {len(lines)}: its writer was probably killed")
    steps = [_step(decoder, line, path.name, number) for number, line in enumerate(lines, 1) if line.strip()]
    if not steps:
        raise TraceError(f"{path.name} holds no step")
    names = SCHEMA.names()
    columns = {name: [getattr(step, name) for step in steps] for name in names}
    columns["kind"] = [_ALSO.get(kind, kind) for kind in columns["kind"]]
    columns["request"] = [None if value is None else plain(str(value)) for value in columns["request"]]
    return pl.DataFrame(columns, schema=SCHEMA)


def _stops(decoder: msgspec.json.Decoder[_Step], line: bytes) -> bool:
    try:
        bounded_json.decode(decoder, line)
    except msgspec.DecodeError as error:
        return bool(line.strip()) and "truncated" in str(error)
    return False


def _step(decoder: msgspec.json.Decoder[_Step], line: bytes, name: str, number: int) -> _Step:
    try:
        step = bounded_json.decode(decoder, line)
    except msgspec.DecodeError as error:
        raise TraceError(f"{name} line {number} is no step: {error}") from None
    if step.kind not in KINDS and step.kind not in _ALSO:
        raise TraceError(f"{name} line {number}: kind {step.kind!r} is not one of {', '.join(KINDS)}")
    if step.kind == "verify" and step.num_committed is None:
        raise TraceError(f"{name} line {number}: a verify step needs num_committed")
    negative = [n for n in ("num_draft", "num_accepted_draft", "num_committed") if (getattr(step, n) or 0) < 0]
    if negative:
        raise TraceError(f"{name} line {number}: {negative[0]} is negative")
    return step
