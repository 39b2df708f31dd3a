"""Accept length by the rule: what counts as a verify step, what is committed, and how it is split."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import traces

from specanalyze.answers.accept import (
    accept_frame,
    accept_json,
    accepts_of_cycles,
    accepts_of_steps,
    accepts_of_trace,
    steps_beside,
    verify_steps_of,
)
from specanalyze.attribution.cycles import CYCLE_SCHEMA, rank_cycles
from specanalyze.cli import run
from specanalyze.formats.load import open_trace
from specanalyze.render.accept import draw
from specanalyze.trace import Trace
from specschema.errors import TraceError, UsageError

CASES = Path(__file__).parents[1] / "cases"


def cycle(number: int, mode: str | None, **more: Any) -> dict[str, Any]:
    return traces.phase("spec.cycle", 10 * number, 10 * number + 8, cycle=number, mode=mode, **more)


def request(name: str, completion: int) -> dict[str, Any]:
    row = {"kind": "request", "name": "server.request", "pid": 1, "start_ns": 0, "request_ids": [name]}
    return {**row, "completion_tokens": completion}


MIXED_RUN = (
    cycle(0, "prefill", request_ids=["a"], accept_lengths=[1]),
    cycle(1, "speculative", request_ids=["a"], draft_tokens=4, accept_lengths=[4], accepted_draft_tokens=[3]),
    # b is prefilled while a is verified
    cycle(2, "mixed", request_ids=["a", "b"], draft_tokens=4, accept_lengths=[1, 1], accepted_draft_tokens=[0, None]),
    # the stop token lies inside a's accepted drafts; b's length never reached the host
    cycle(
        3, "speculative", request_ids=["a", "b"], draft_tokens=2, accept_lengths=[2, None], accepted_draft_tokens=[2, 1]
    ),
    cycle(4, "speculative", request_ids=["b"], draft_tokens=2, accept_lengths=[3], accepted_draft_tokens=[2]),
    cycle(5, "speculative", request_ids=["b"], draft_tokens=0, accept_lengths=[1], accepted_draft_tokens=[0]),
    cycle(6, "decode", request_ids=["b"], accept_lengths=[1]),
    cycle(7, "idle"),
)


def recording(*rows: dict[str, Any], **more: Any) -> Trace:
    return dataclasses.replace(traces.trace(traces.rank_trace(rows)), **more)


@pytest.mark.parametrize(("committed", "cut"), [(3, 0), (2, 1), (1, 2)])
def test_tokens_beyond_a_request_s_end_are_counted(
    committed: int, cut: int, capsys: pytest.CaptureFixture[str]
) -> None:
    row = cycle(
        1, "speculative", request_ids=["a"], draft_tokens=4, accept_lengths=[committed], accepted_draft_tokens=[2]
    )
    result = accepts_of_trace(recording(row))
    assert result.beyond_the_end == cut
    draw(result, accept_frame(result, "position"), "position")
    assert ("beyond the end of a request" in capsys.readouterr().out) == bool(cut)


def test_only_verify_steps_with_a_known_length_count() -> None:
    found = accepts_of_trace(recording(*MIXED_RUN))
    assert (found.verify_steps, found.committed_tokens) == (4, 10)
    assert found.accept_length == 2.5
    assert found.accepted_draft_tokens == 1.5
    assert found.draft_accept_rate == (3 + 0 + 2 + 2) / (4 + 4 + 2 + 2)
    assert found.excluded == {"prefill": 2, "unknown": 1, "no_draft": 1, "decode": 1, "idle": 1}
    assert any("1 (request, step) pairs have no known accept length" in line for line in found.warnings)


def test_requests_without_drafts_beside_drafted_ones_are_no_verify_steps() -> None:
    """N-gram matching drafts for some requests of a batch only; a trace that tells of no request's drafts is another case."""
    some = {"request_ids": ["a", "b"], "draft_tokens": 3, "accept_lengths": [3, 1]}
    found = accepts_of_trace(recording(cycle(0, "speculative", accepted_draft_tokens=[2, None], **some)))
    assert (found.verify_steps, found.accept_length, found.draft_accept_rate) == (1, 3.0, 2 / 3)
    assert found.excluded == {"no_draft": 1}
    untold = accepts_of_trace(recording(cycle(0, "speculative", accepted_draft_tokens=None, **some)))
    assert (untold.verify_steps, untold.accept_length, untold.excluded) == (2, 2.0, {})


def test_cycles_at_hand_are_counted_alike() -> None:
    recorded = recording(*MIXED_RUN)
    cycles = rank_cycles(recorded.sources[0].read())
    found = accepts_of_cycles(recorded, cycles)
    assert found is not None
    assert (found.verify_steps, found.committed_tokens, found.accept_length) == (4, 10, 2.5)
    assert accepts_of_cycles(recorded, cycles.filter(pl.col("mode") == "decode")) is None


def test_the_splits() -> None:
    found = accepts_of_trace(recording(*MIXED_RUN))

    def split(by: str) -> list[tuple[Any, ...]]:
        return accept_frame(found, by).select(pl.first(), "verify_steps", "committed_tokens", "accept_length").rows()

    assert split("request") == [("a", 3, 7, 7 / 3), ("b", 1, 3, 3.0)]
    assert split("batch") == [(1, 2, 7, 3.5), (2, 2, 3, 1.5)]
    assert split("draft") == [(2, 2, 5, 2.5), (4, 2, 5, 2.5)]
    assert split("mode") == [("mixed", 1, 1, 1.0), ("speculative", 3, 9, 3.0)]
    assert split("time") == [(0, 1, 4, 4.0), (1, 1, 1, 1.0), (2, 1, 2, 2.0), (3, 1, 3, 3.0)]
    assert accept_frame(found, "position").select("proposed", "accepted").rows() == [(4, 3), (4, 3), (2, 1), (2, 0)]
    with pytest.raises(UsageError, match="cannot split by 'layer'"):
        accept_frame(found, "layer")


def test_tensor_parallel_ranks_count_once() -> None:
    both = traces.trace(traces.rank_trace(MIXED_RUN, rank=0), traces.rank_trace(MIXED_RUN, rank=1))
    assert accepts_of_trace(both).verify_steps == 4


def test_the_servers_own_count() -> None:
    said = accepts_of_trace(
        recording(*MIXED_RUN[:2], cycle(3, "speculative", request_ids=["a"], accept_lengths=[2]), request("a", 7))
    )
    assert said.server is not None
    assert (said.server.requests, said.server.completion_tokens, said.server.recorded_tokens) == (1, 7, 7)
    assert not any("counts" in line for line in said.warnings)
    short = accepts_of_trace(recording(*MIXED_RUN[:2], request("a", 7)))
    assert "the server counts 7 tokens for 1 request, the recording 5: 2 are missing" in short.warnings
    unseen = accepts_of_trace(recording(MIXED_RUN[1], request("a", 7)))  # its prefill was not recorded
    assert unseen.server is None
    totals = {"completion_tokens": 9, "difference": 1, "told_by": "client", "compared_requests": 1}
    told = accepts_of_trace(recording(*MIXED_RUN[:2], metadata={"recording": {"totals": {"0": totals}}}))
    assert told.server is not None
    assert (told.server.told_by, told.server.recorded_tokens) == ("client", 8)


def test_a_recording_without_accepts_is_told_what_to_record() -> None:
    with pytest.raises(
        TraceError, match=r"does not say how many tokens its 1 cycles committed: record with the collector"
    ):
        accepts_of_trace(recording(cycle(0, "speculative", batch_size=1)))
    with pytest.raises(TraceError, match="holds no verify step, only 3 decode: was speculative decoding on"):
        accepts_of_trace(recording(cycle(0, "decode", batch_size=3)))
    with pytest.raises(TraceError, match="has no decode cycles"):
        accepts_of_trace(recording(traces.phase("other", 0, 1)))


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("41-accept-length-bonus-and-eos", {"draft_accept_rate"}),
        ("49-dp-attention-idle-cycles", {"excluded"}),
    ],
)
@pytest.mark.parametrize("form", ["folder", "file"])
def test_the_cases(name: str, figures: set[str], form: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = json.loads((CASES / name / "expected.json").read_text())
    path = CASES / name if form == "folder" else CASES / name / "steps.jsonl"
    assert run(["accept", str(path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    for figure in ("accept_length", "accepted_draft_tokens", "verify_steps", "committed_tokens", *figures):
        assert printed[figure] == expected[figure], figure


def test_steps_lie_beside_a_trace_too() -> None:
    folder = CASES / "49-dp-attention-idle-cycles"
    assert steps_beside([next(folder.glob("*TP-0*"))]) == folder / "steps.jsonl"
    assert steps_beside([CASES / "01-graph-replay-one-correlation"]) is None


def test_a_step_written_by_two_ranks_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    row = '{"rank": %d, "cycle": 1, "request": "r", "kind": "%s", "num_draft": 2, "num_accepted_draft": 1, "num_committed": 2}\n'
    path.write_text(row % (0, "verify") + row % (1, "verify") + (row % (0, "idle")).replace('"r"', "null") * 2)
    found = accepts_of_steps(path)
    assert (found.verify_steps, found.excluded) == (1, {"idle": 2})
    assert accept_json(found)["draft_accept_rate"] == 0.5


def run_of(accepted: list[int], drafted: int = 2) -> Trace:
    return recording(
        *(
            cycle(n, "speculative", draft_tokens=drafted, accept_lengths=[a + 1], accepted_draft_tokens=[a])
            for n, a in enumerate(accepted)
        )
    )


def warned(trace: Trace, words: str) -> bool:
    return any(words in line for line in accepts_of_trace(trace).warnings)


def test_patterns_of_a_wrongly_wired_draft() -> None:
    sound = [2, 1, 0, 2, 1, 2, 0, 1] * 10
    for words in ("close to 1", "first draft position", "exactly", "simulate"):
        assert not warned(run_of(sound), words)
    assert warned(run_of([0] * 58 + [1, 2]), "accept length 1.05 over 60 verify steps is close to 1")
    late = run_of([0] * 50 + [2] * 49 + [1])
    assert not warned(late, "the first draft position")  # 50 % then 98 %: hard tokens, easy tokens
    assert warned(run_of([0] * 70 + [2] * 30), "the first draft position is accepted 30 %, the later ones 100 %")
    assert warned(run_of([0] * 40 + [1] * 58 + [2] * 2), "60 %, the second 3 % once reached")
    assert warned(run_of([1] * 100), "each of 100 verify steps accepted exactly 1")
    assert not accepts_of_trace(run_of([0] * 19)).warnings  # too few to say


def test_simulated_acceptance_is_named() -> None:
    trace = dataclasses.replace(
        run_of([0] * 30), metadata={"environment": {"variables": {"SGLANG_SIMULATE_ACC_LEN": "2.0"}}}
    )
    assert warned(trace, "SGLANG_SIMULATE_ACC_LEN=2.0 is set: the server invents acceptance")


@pytest.mark.parametrize(
    "arguments",
    [
        {"speculative_config.rejection_sample_method": "synthetic"},
        {"speculative_config": {"rejection_sample_method": "synthetic"}},
    ],
)
def test_acceptance_that_vllm_makes_up_is_told_by_its_argument(arguments: dict[str, Any]) -> None:
    trace = dataclasses.replace(
        run_of([0, 1] * 30), metadata={"environment": {"server": "vllm", "server_args": arguments}}
    )
    assert warned(trace, "rejection_sample_method is synthetic: the server invents acceptance")
    arguments = {"speculative_config.rejection_sample_method": "strict"}
    trace = dataclasses.replace(
        run_of([0, 1] * 30), metadata={"environment": {"server": "vllm", "server_args": arguments}}
    )
    assert not warned(trace, "the server invents acceptance")


def test_a_real_cycle_log(reference: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = reference / "traces/sglang_h200/tp1/e2_m14_rank0.json.gz"
    assert run(["accept", str(trace), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    # 202 results, the first of them the prefill; the server simulated an accept length of 2
    assert (printed["verify_steps"], printed["accept_length"]) == (201, 2.0)
    assert run(["accept", str(trace), "--by", "time"]) == 0
    assert "accept length" in capsys.readouterr().out


def test_the_draft_accept_rate_needs_both_counts_of_a_step() -> None:
    """Of the second step only the drafts are known, of the third only the accepted ones: neither moves the rate."""
    trace = recording(
        cycle(0, "speculative", draft_tokens=4, accept_lengths=[2], accepted_draft_tokens=[1]),
        cycle(1, "speculative", draft_tokens=4, accept_lengths=[2], accepted_draft_tokens=[None]),
        cycle(2, "speculative", draft_tokens=None, accept_lengths=[4], accepted_draft_tokens=[3]),
    )
    assert accepts_of_trace(trace).draft_accept_rate == 1 / 4


FIGURES = ("verify_steps", "committed_tokens", "accept_length", "accepted_draft_tokens", "draft_accept_rate")


def test_every_figure_of_a_split() -> None:
    """Steps of which one count is unknown belong to the accept length, and not to the draft accept rate."""
    rows = (
        cycle(0, "speculative", request_ids=["a"], draft_tokens=4, accept_lengths=[4], accepted_draft_tokens=[3]),
        cycle(1, "speculative", request_ids=["a"], draft_tokens=4, accept_lengths=[2], accepted_draft_tokens=[1]),
        cycle(2, "speculative", request_ids=["a"], draft_tokens=None, accept_lengths=[9], accepted_draft_tokens=[8]),
        cycle(3, "speculative", request_ids=["b"], draft_tokens=1, accept_lengths=[1], accepted_draft_tokens=[0]),
        cycle(4, "speculative", request_ids=["c"], draft_tokens=4, accept_lengths=[5]),
        cycle(5, "speculative", request_ids=["d"], draft_tokens=None, accept_lengths=[2], accepted_draft_tokens=[1]),
        cycle(6, "speculative", request_ids=["e"], draft_tokens=2, accept_lengths=[3], accepted_draft_tokens=[2]),
    )
    found = accepts_of_trace(recording(*rows))
    assert accept_frame(found, "request").select("request", *FIGURES).rows() == [
        ("a", 3, 15, 5.0, 4.0, 4 / 8),
        ("b", 1, 1, 1.0, 0.0, 0.0),
        ("c", 1, 5, 5.0, 4.0, None),
        ("d", 1, 2, 2.0, 1.0, None),
        ("e", 1, 3, 3.0, 2.0, 1.0),
    ]
    assert accept_frame(found, "draft").select("drafted", "verify_steps", "draft_accept_rate").rows() == [
        (1, 1, 0.0),
        (2, 1, 1.0),
        (4, 3, 0.5),
        (None, 2, None),
    ]
    assert [line for line in found.warnings if "draft lengths are not recorded for all steps" in line]


def test_time_is_split_into_twenty_stretches_of_equally_many_steps() -> None:
    rows = [cycle(n, "speculative", draft_tokens=2, accept_lengths=[1 + n % 3]) for n in range(60)]
    rows = [rows[n] for n in (*range(30, 60), *range(30))]  # the order of the file is not that of time
    frame = accept_frame(accepts_of_trace(recording(*rows)), "time")
    assert frame.select(
        "slice", "first_cycle", "last_cycle", "start_ns", "verify_steps", "committed_tokens"
    ).rows() == [(n, 3 * n, 3 * n + 2, 30 * n, 3, 6) for n in range(20)]


def test_kinds_are_listed_as_they_come() -> None:
    assert list(accepts_of_trace(recording(*MIXED_RUN)).excluded) == [
        "prefill",
        "unknown",
        "no_draft",
        "decode",
        "idle",
    ]
    none = recording(
        cycle(0, "prefill", accept_lengths=[1]),
        cycle(1, "idle"),
        cycle(2, "decode", accept_lengths=[1]),
        cycle(3, "speculative", draft_tokens=0, accept_lengths=[1], accepted_draft_tokens=[0]),
    )
    with pytest.raises(TraceError, match="holds no verify step, only 1 prefill, 1 idle, 1 decode, 1 no draft: was"):
        accepts_of_trace(none)


def test_a_cycle_of_unknown_mode_is_no_verify_step() -> None:
    rows = [
        {"cycle": n, "mode": mode, "draft_tokens": 2, "accept_lengths": [n]}
        for n, mode in ((3, "speculative"), (9, None))
    ]
    steps, excluded = verify_steps_of(pl.DataFrame(rows, schema=CYCLE_SCHEMA))
    assert (steps["committed"].to_list(), excluded) == ([3], {"unknown": 1})


def test_more_lengths_than_names_of_requests() -> None:
    row = cycle(
        0, "speculative", request_ids=["a"], draft_tokens=2, accept_lengths=[2, 3], accepted_draft_tokens=[1, 2]
    )
    found = accepts_of_trace(recording(row))
    assert found.steps.select("request", "committed").rows() == [("a", 2), (None, 3)]


def test_the_servers_count_is_equal_or_not() -> None:
    second = cycle(3, "speculative", request_ids=["a"], accept_lengths=[2])
    equal = accept_json(accepts_of_trace(recording(*MIXED_RUN[:2], second, request("a", 7))))["server"]
    assert (equal["difference"], equal["equal"]) == (0, True)
    off = accept_json(accepts_of_trace(recording(*MIXED_RUN[:2], second, request("a", 8))))["server"]
    assert (off["difference"], off["equal"]) == (1, False)


def test_steps_without_drafts_are_none(tmp_path: Path) -> None:
    """One draft makes a verify step, none does not; where the number is unknown the kind of the step says it."""
    path = tmp_path / "steps.jsonl"
    row = '{"cycle": %d, "request": "r", "kind": "verify", "num_draft": %s, "num_accepted_draft": 0, "num_committed": 1}\n'
    path.write_text(row % (1, "0") + row % (2, "1") + row % (3, "null"))
    found = accepts_of_steps(path)
    assert found.steps["cycle"].to_list() == [2, 3]
    assert found.excluded == {"no_draft": 1}


def test_lengths_of_the_run_beside_the_trace_are_said_to_be_its_own(reference: Path) -> None:
    """The traced cycles of this recording have none; those of the untraced run beside it do."""
    folder = reference / "traces/sglang_h200/tp1"
    words = "the accept lengths are those of the untraced run beside the trace, not the trace's own"
    trace = open_trace([folder / "e5_m13_rank0.json.gz"], cycles=folder / "e2_m14_rank0.cycles.json")
    assert words in accepts_of_trace(trace).warnings
    own = open_trace([folder / "e2_m14_rank0.json.gz"])
    assert words not in accepts_of_trace(own).warnings


def test_more_tokens_than_drafts_and_bonus_allow_are_said(tmp_path: Path) -> None:
    """Two drafts: at most 2 accepted and 3 committed; one step too many of each kind, and two that are right."""
    path = tmp_path / "steps.jsonl"
    row = '{"cycle": %d, "request": "r", "kind": "verify", "num_draft": 2, "num_accepted_draft": %d, "num_committed": %d}\n'
    right = row % (1, 2, 3) + row % (2, 2, 1)
    path.write_text(right)
    assert not [line for line in accepts_of_steps(path).warnings if "allow" in line]
    for more in (row % (3, 3, 3), row % (3, 2, 4)):
        path.write_text(right + more)
        said = [line for line in accepts_of_steps(path).warnings if "allow" in line]
        assert len(said) == 1
        assert said[0].startswith("1 verify step with more tokens")
