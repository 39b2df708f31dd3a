"""The cycle table: steps, modes, tokens, and which ranks count."""

from __future__ import annotations

import dataclasses
from typing import Any

import polars as pl
import traces

from specanalyze.attribution.cycles import (
    CYCLE_SCHEMA,
    STAMP_SCHEMA,
    control_is_another_run,
    cycle_table,
    phase_stamps,
    replicas,
)
from specanalyze.trace import RankTrace


def cycle(number: int | None, start: int, end: int, **more: Any) -> dict[str, Any]:
    return traces.phase("spec.cycle", start, end, cycle=number, **more)


def table(*rows: dict[str, Any], rank: int = 0) -> pl.DataFrame:
    return cycle_table(traces.trace(traces.rank_trace(rows, rank=rank)))


def test_a_step_reaches_to_the_next_start_within_window_mode_and_request() -> None:
    spec: dict[str, Any] = {"mode": "speculative", "request_ids": ["a"]}
    found = table(
        cycle(0, 0, 8, mode="prefill", request_ids=["a"]),
        cycle(1, 10, 18, **spec),
        cycle(2, 21, 30, **spec),  # next one is in a window
        cycle(3, 40, 49, window=0, **spec),
        cycle(4, 52, 60, window=0, **spec),  # the window ends
        cycle(5, 70, 78, **spec),
        cycle(7, 90, 98, **spec),  # cycle 6 was lost; then another request
        cycle(8, 99, 100, mode="speculative", request_ids=["b"]),
        cycle(9, 105, 110, mode="speculative", request_ids=["b", "c"]),
        cycle(10, 120, 130, mode="speculative", request_ids=["c"]),
    )
    assert found.schema == pl.Schema(CYCLE_SCHEMA)
    assert found["step_ns"].to_list() == [None, 11, None, 12, None, None, None, 6, 15, None]
    assert found["end_ns"].to_list() == [8, 18, 30, 49, 60, 78, 98, 100, 110, 130]
    assert found["window"].to_list() == [None, None, None, 0, 0, None, None, None, None, None]


def test_tokens_are_unknown_where_one_accept_is_and_one_each_in_plain_decode() -> None:
    found = table(
        cycle(0, 0, 8, mode="speculative", accept_lengths=[3, 1]),
        cycle(1, 10, 18, mode="speculative", accept_lengths=[3, None]),
        cycle(2, 20, 28, mode="speculative", batch_size=2),
        cycle(3, 30, 38, mode="decode", batch_size=4),
        cycle(4, 40, 48, mode="decode"),
        cycle(5, 50, 58, mode="prefill", batch_size=4),
    )
    assert found["tokens"].to_list() == [4, None, None, 4, None, None]


def test_mode_comes_from_the_phases_where_the_row_has_none() -> None:
    found = table(
        cycle(0, 0, 10),
        traces.phase("spec.prefill", 1, 5),
        cycle(1, 10, 20),
        traces.phase("spec.draft", 11, 12),
        traces.phase("spec.verify", 12, 15),
        cycle(2, 20, 30),
        traces.phase("spec.decode", 21, 25),
        cycle(3, 30, 40),
        traces.phase("spec.idle", 31, 35),
        cycle(4, 40, 50),
        cycle(5, 50, 60, accepted_draft_tokens=[1]),
    )
    assert found["mode"].to_list() == ["prefill", "speculative", "decode", "idle", None, "speculative"]


def test_cycles_are_found_among_the_phases_of_a_window_without_cycle_rows() -> None:
    rows = [
        traces.phase("draft_extend", 0, 5, window=0),  # of a cycle that began before the window
        traces.phase("draft", 10, 20, window=0),
        traces.phase("step[TARGET_VERIFY bs=1]", 20, 40, window=0),
        traces.phase("draft_extend", 41, 45, window=0),
        traces.phase("draft", 50, 60, window=0),
        traces.phase("step[TARGET_VERIFY bs=1]", 60, 80, window=0),
        cycle(90, 1000, 1010),  # untraced, of a log
        cycle(91, 1015, 1025),
        traces.phase("other", 1030, 1040),
    ]
    found = table(*rows)
    assert found.select("window", "cycle", "mode", "start_ns", "dur_ns", "step_ns").rows() == [
        (0, 0, "speculative", 10, 35, 40),
        (0, 1, "speculative", 50, 30, None),
        (None, 90, None, 1000, 10, 15),
        (None, 91, None, 1015, 10, None),
    ]
    stamps = phase_stamps(traces.trace(traces.rank_trace(rows)))
    assert stamps.schema == pl.Schema(STAMP_SCHEMA)
    assert stamps.select("window", "cycle", "phase", "start_ns").rows() == [
        (0, 0, "draft_extend", 0),
        (0, 0, "draft", 10),
        (0, 0, "verify", 20),
        (0, 0, "draft_extend", 41),
        (0, 1, "draft", 50),
        (0, 1, "verify", 60),
    ]


def test_a_trace_that_names_no_window_is_one_window_if_a_profiler_ran() -> None:
    rows = [cycle(None, 0, 10), cycle(None, 12, 20)]
    assert table(*rows).select("window", "cycle").rows() == [(None, 0), (None, 1)]
    assert table(*rows, traces.launch("cudaLaunchKernel", 3, 1)).select("window", "cycle").rows() == [(0, 0), (0, 1)]


def test_a_cycle_nested_in_a_cycle_is_part_of_it() -> None:
    assert table(cycle(None, 0, 10), cycle(None, 2, 8), cycle(None, 12, 20))["start_ns"].to_list() == [0, 12]


def test_ranks_that_serve_the_same_request_count_once_even_where_their_accepts_differ() -> None:
    def rank(number: int, accepts: list[int | None], first: int) -> Any:
        rows = [
            cycle(first + n, 10 * n, 10 * n + 8, mode="speculative", request_ids=["a"], accept_lengths=[length])
            for n, length in enumerate(accepts)
        ]
        return traces.rank_trace(rows, rank=number)

    # Rank 1 was armed a cycle later and never learnt the accepts of its last cycle.
    recording = traces.trace(rank(0, [1, 2, 3], 0), rank(1, [2, 3, None], 0))
    assert replicas(recording, cycle_table(recording)) == ["0"]


def test_tensor_parallel_ranks_count_once_and_data_parallel_ranks_each() -> None:
    def rank(number: int, accepts: list[int], request: str = "a") -> Any:
        rows = [
            cycle(n, 10 * n, 10 * n + 8, mode="speculative", request_ids=[request], accept_lengths=[length])
            for n, length in enumerate(accepts)
        ]
        return traces.rank_trace(rows, rank=number)

    recording = traces.trace(rank(0, [1, 2]), rank(1, [1, 2]), rank(2, [1, 2], "b"), rank(3, [1, 2, 3], "b"))
    assert replicas(recording, cycle_table(recording)) == ["0", "3"]  # rank 3 knows more accepts
    told = dataclasses.replace(
        recording, metadata={"ranks": [{"rank": n, "data": n // 2, "tensor": n % 2} for n in range(4)]}
    )
    assert replicas(told, cycle_table(told)) == ["0", "3"]
    apart = dataclasses.replace(recording, metadata={"ranks": [{"rank": n, "data": n} for n in range(4)]})
    assert replicas(apart, cycle_table(apart)) == ["0", "1", "2", "3"]


def test_ranks_without_a_data_coordinate_are_told_apart_by_their_requests() -> None:
    ranks = [
        traces.rank_trace([cycle(0, 0, 8, mode="speculative", request_ids=[who], accept_lengths=[1])], rank=number)
        for number, who in enumerate(("a", "b", "a"))
    ]
    recording = dataclasses.replace(
        traces.trace(*ranks), metadata={"ranks": [{"rank": 0}, {"rank": 1, "data": None}, {"data": 1}, "rank 2"]}
    )
    assert replicas(recording, cycle_table(recording)) == ["0", "1"]


def apart(gap_ns: int, step_ns: int, rank: str = "0") -> pl.DataFrame:
    """Three traced cycles, and three untraced ones so long after the last of them."""
    starts = [n * step_ns for n in range(3)]
    starts += [starts[-1] + gap_ns + n * step_ns for n in range(3)]
    rows = [
        {"rank": rank, "window": 0 if n < 3 else None, "start_ns": start, "dur_ns": step_ns - 1, "step_ns": step_ns}
        for n, start in enumerate(starts)
    ]
    return pl.DataFrame(rows, schema={name: CYCLE_SCHEMA[name] for name in rows[0]})


def test_a_control_of_another_run_is_told_by_its_distance() -> None:
    """More than a second away, and more than fifty cycles."""
    ms = 1_000_000
    for step, gap, other in (
        (1 * ms, 1000 * ms, False),
        (1 * ms, 1000 * ms + 1, True),
        (40 * ms, 2000 * ms, False),
        (40 * ms, 2000 * ms + 1, True),
    ):
        assert control_is_another_run(apart(gap, step)) is other, (step, gap)
    assert not control_is_another_run(apart(5000 * ms, ms).filter(pl.col("window").is_null()))
    assert not control_is_another_run(apart(5000 * ms, ms).filter(pl.col("window").is_not_null()))
    # every rank that has both: one that lies close is enough for "the same run", one that has no control says nothing
    far, near = apart(5000 * ms, ms, "0"), apart(5 * ms, ms, "1")
    alone = apart(5 * ms, ms, "2").filter(pl.col("window").is_not_null())
    assert not control_is_another_run(pl.concat([far, near]))
    assert control_is_another_run(pl.concat([alone, far]))
    # without steps the length of a cycle is its measure, and one long cycle does not move a median
    long = apart(1100 * ms, 20 * ms).with_columns(step_ns=pl.lit(None, pl.Int64))
    assert control_is_another_run(long)
    odd = apart(1100 * ms, 20 * ms).with_columns(step_ns=pl.Series([20 * ms] * 5 + [500 * ms]))
    assert control_is_another_run(odd)
    lengths = odd.with_columns(step_ns=pl.lit(None, pl.Int64), dur_ns=pl.col("step_ns"))
    assert control_is_another_run(lengths)


def test_ranks_agree_cycle_by_cycle_where_no_ids_are_known() -> None:
    def of(rank: int, *rows: tuple[int, int | None, list[int] | None]) -> RankTrace:
        return traces.rank_trace(
            [
                cycle(n, 10 * at, 10 * at + 8, mode="speculative", accept_lengths=a, window=w)
                for at, (n, w, a) in enumerate(rows)
            ],
            rank=rank,
        )

    def chosen(*ranks: RankTrace) -> list[str]:
        trace = traces.trace(*ranks)
        return replicas(trace, cycle_table(trace))

    one = of(0, (1, None, [2]), (2, None, [3]), (3, 0, [1]))
    assert chosen(one, of(1, (1, None, [2]), (2, None, [3]), (3, 0, [1]))) == ["0"]
    assert chosen(one, of(1, (1, None, [2]), (2, None, [4]), (3, 0, [1]))) == ["0", "1"]  # one accept differs
    assert chosen(one, of(1, (2, None, [3]), (9, None, [7]))) == ["0"]  # of the cycles that both have
    assert chosen(one, of(1, (7, None, [2]), (8, None, [3]))) == ["0", "1"]  # they share no cycle
    assert chosen(one, of(1, (1, 0, [2]), (2, 0, [3]))) == [
        "0",
        "1",
    ]  # a traced cycle is not an untraced one of that number
    fewer = of(1, (1, None, [2]), (2, None, None), (3, 0, None))
    assert chosen(of(0, (1, None, [2]), (2, None, None)), of(1, (1, None, [2]), (2, None, None), (3, 0, [4]))) == ["1"]
    assert chosen(one, fewer) == ["0", "1"]


def test_a_cycle_range_inside_another_of_its_thread_is_no_cycle() -> None:
    rows = (
        cycle(1, 0, 20, mode="speculative"),
        cycle(2, 5, 20, mode="speculative"),  # nested, to the same end
        cycle(3, 5, 10, mode="speculative", tid=2),  # another thread's
        cycle(4, 20, 30, mode="speculative"),
        cycle(5, 30, 30, mode="speculative"),  # of no length, at the end of the one before
        cycle(6, 31, 31, mode="speculative"),
    )
    assert table(*rows)["cycle"].sort().to_list() == [1, 3, 4, 6]


def test_a_phase_that_begins_at_the_end_of_a_cycle_is_not_in_it() -> None:
    found = table(
        cycle(0, 0, 10),
        cycle(1, 10, 20),
        traces.phase("spec.verify", 10, 15),
        cycle(2, 20, 30),
        traces.phase("spec.decode", 29, 35),
        cycle(3, 40, 50, draft_tokens=0),
        cycle(4, 60, 70, draft_tokens=1),
        cycle(5, 80, 90, accepted_draft_tokens=[0]),
    )
    assert found["mode"].to_list() == [None, "speculative", "decode", None, "speculative", "speculative"]


def test_a_step_does_not_leave_a_warm_up_and_runs_on_while_a_window_is_read() -> None:
    """The profiler warms up over cycles 2 and 3; a window that ended at 55 is being read until 72."""
    rows = [cycle(n, 10 * n, 10 * n + 8, mode="decode") for n in range(9)]
    recording = dataclasses.replace(
        traces.trace(traces.rank_trace(rows)),
        metadata={"recording": {"warmups": [{"warmup": [2, 4]}], "windows": [{"end_ns": 55, "read_ns": [60, 72]}]}},
    )
    found = cycle_table(recording)
    assert found["disturbed"].to_list() == [None, None, *["warm-up"] * 2, None, *["reading"] * 3, None]
    assert found["step_ns"].to_list() == [10, None, 10, None, 10, 10, 10, 10, None]
    assert found["control"].to_list() == [True, True, False, False, True, False, False, False, True]
    assert table(*rows)["disturbed"].null_count() == 9  # without the recording's word nothing counts as disturbed


def test_a_step_is_known_where_nothing_numbers_a_cycle_or_names_its_requests() -> None:
    found = table(
        cycle(1, 0, 8, mode="speculative", request_ids=["a"]),
        cycle(None, 10, 18, mode="speculative", request_ids=["a"]),
        cycle(3, 21, 28, mode="speculative"),
        cycle(4, 33, 38, mode="speculative", request_ids=["b"]),
    )
    assert found["cycle"].to_list() == [1, None, 3, 4]
    assert found["step_ns"].to_list() == [10, 11, 12, None]


def test_a_batch_of_nobody_commits_no_token() -> None:
    assert table(cycle(0, 0, 8, mode="speculative", accept_lengths=[]))["tokens"].to_list() == [0]


def test_of_cycle_ranges_that_start_together_the_longest_counts() -> None:
    found = table(cycle(1, 0, 10), cycle(2, 0, 20), cycle(3, 20, 30))
    assert found["cycle"].to_list() == [2, 3]


def test_a_row_is_a_cycle_by_its_kind_or_by_its_name() -> None:
    rows = [
        {**traces.phase("spec.cycle", 0, 10), "kind": "phase"},
        {**cycle(None, 20, 30), "name": "step 7"},
        traces.phase("spec.verify", 40, 50),
        {**traces.phase("spec.cycle", 60, 70), "name": None},
    ]
    assert table(*rows)["start_ns"].to_list() == [0, 20, 60]


def test_ranks_of_which_one_never_names_requests_are_compared_by_their_cycles() -> None:
    def of(rank: int, *rows: tuple[list[int], list[str] | None]) -> RankTrace:
        made = [
            cycle(n, 10 * n, 10 * n + 8, mode="speculative", accept_lengths=accepts, request_ids=ids)
            for n, (accepts, ids) in enumerate(rows)
        ]
        return traces.rank_trace(made, rank=rank)

    alike = traces.trace(of(0, ([2], None), ([3], ["a"])), of(1, ([2], None)))
    assert replicas(alike, cycle_table(alike)) == ["0"]
    other = traces.trace(of(0, ([2], None), ([3], ["a"])), of(1, ([1], None)))
    assert replicas(other, cycle_table(other)) == ["0", "1"]


def test_ranks_without_a_control_do_not_hide_those_behind_them() -> None:
    ms = 1_000_000
    traced = apart(5 * ms, ms, "0").filter(pl.col("window").is_not_null())
    assert control_is_another_run(pl.concat([traced, apart(5000 * ms, ms, "1")]))
