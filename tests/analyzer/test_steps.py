"""steps.jsonl: drafts and committed tokens of each (request, step)."""

from __future__ import annotations

from pathlib import Path

import pytest

from specanalyze.formats.steps import SCHEMA, read_steps
from specschema.errors import TraceError, UsageError

CASES = Path(__file__).parents[1] / "cases"


def test_steps_of_one_request() -> None:
    steps = read_steps(CASES / "41-accept-length-bonus-and-eos/steps.jsonl")
    assert steps.schema == SCHEMA
    assert steps.rows() == [
        (0, 0, "r1", "verify", 4, 3, 4),
        (0, 1, "r1", "verify", 4, 0, 1),
        (0, 2, "r1", "verify", 4, 4, 5),
        (0, 3, "r1", "verify", 4, 4, 3),
    ]


def test_idle_steps_of_two_ranks_are_kept() -> None:
    steps = read_steps(CASES / "49-dp-attention-idle-cycles/steps.jsonl")
    assert steps.select("rank", "cycle", "request", "kind", "num_committed").rows() == [
        (0, 1, "r1", "verify", 3),
        (1, 1, "r9", "verify", 5),
        (0, 2, "r1", "verify", 1),
        (1, 2, None, "idle", 0),
        (0, 3, None, "idle", 0),
        (1, 3, None, "idle", 0),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"kind": "verify", "num_committed": 1', "line 3 is no step: Input data was truncated"),
        (
            '{"kind": "verify", "num_committed": "one"}',
            r"line 3 is no step: Expected `int \| null`, got `str` - at `\$\.num_committed`",
        ),
        ('{"num_committed": 1}', "line 3 is no step: Object missing required field `kind`"),
        ('{"kind": "guess"}', "line 3: kind 'guess' is not one of verify, prefill, decode, idle, dummy, no_draft"),
        ('{"kind": "verify"}', "line 3: a verify step needs num_committed"),
        ('{"kind": "verify", "num_committed": -1}', "line 3: num_committed is negative"),
        ("[]", "line 3 is no step"),
    ],
)
def test_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text(f'{{"kind": "idle"}}\n\n{line}\n')
    with pytest.raises(TraceError, match=rf"^steps\.jsonl {message}"):
        read_steps(path)


def test_last_line_that_stops_in_the_middle_is_an_early_end(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text('{"kind": "idle"}\n{"kind": "verify", "num_comm')
    with pytest.raises(TraceError, match=r"^steps\.jsonl ends early, inside line 2"):
        read_steps(path)


def test_whole_numbers_as_other_tools_rewrite_them(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text(
        '\ufeff{"kind": "verify", "cycle": 2.0, "num_draft": "4", "num_committed": 3.0}\r\n{"kind": "extend"}'
    )
    rows = [(0, 2, None, "verify", 4, None, 3), (0, None, None, "prefill", None, None, None)]
    assert read_steps(path).rows() == rows


def test_file_without_steps(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text("\n")
    with pytest.raises(TraceError, match=r"^steps\.jsonl holds no step"):
        read_steps(path)
    with pytest.raises(UsageError, match="No such file"):
        read_steps(tmp_path / "none.jsonl")
