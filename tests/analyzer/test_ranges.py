"""Which host ranges are phases, and which phase each instant of a thread is in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import traces

from specanalyze.attribution.ranges import Ranges, recognised_ranges
from specschema.phases import PHASE_KEYS


def ranges(*rows: dict[str, Any]) -> Ranges:
    return recognised_ranges(traces.events(rows))


def listed(found: Ranges) -> list[tuple[str, int, int]]:
    phases = [PHASE_KEYS[code] for code in found.phase]
    return list(zip(phases, found.start.tolist(), found.end.tolist(), strict=True))


def covered(found: Ranges, which: list[int] | None = None) -> list[list[tuple[int, int, int]]]:
    """(start, end, owner) of each level."""
    levels = found.cover(None if which is None else np.array(which, dtype=np.int64))
    return [list(zip(*(column.tolist() for column in level), strict=True)) for level in levels]


def test_a_range_keeps_its_time_thread_and_cycle() -> None:
    found = ranges(
        traces.phase("spec.verify", 10, 30, tid=5, pid=2, cycle=0),
        traces.phase("spec.draft", 0, 10, tid=6, pid=1),
        traces.phase("spec.idle", 31, 31, tid=5, pid=2, cycle=7),  # of no length
        traces.kernel("spec.draft", 0, 10, 1),  # no host range
    )
    assert listed(found) == [("verify", 10, 30), ("draft", 0, 10), ("idle", 31, 31)]
    assert found.threads == ((1, 6), (2, 5))
    assert found.thread.tolist() == [1, 0, 1]
    assert found.cycle.tolist() == [0, -1, 7]
    assert len(found) == 3
    assert dict(zip(PHASE_KEYS, found.instances().tolist(), strict=True)) == {
        **dict.fromkeys(PHASE_KEYS, 0),
        "verify": 1,
        "draft": 1,
        "idle": 1,
    }


def test_what_is_no_phase_has_no_name_or_never_closed_is_left_out() -> None:
    found = ranges(
        traces.phase("spec.verify", 0, None),
        traces.phase("spec.verify", 10, 20),
        traces.phase("my range", 0, 5),
        traces.phase("other", 0, 5),
        traces.phase("my range", 6, 7),
        {**traces.phase("spec.draft", 0, 5), "name": None},
    )
    assert listed(found) == [("verify", 10, 20)]
    assert found.unrecognised == ("my range", "other")


def test_a_range_whose_thread_is_not_told_is_on_thread_0_of_process_0() -> None:
    rows = [{**traces.phase("spec.verify", 0, 9), "pid": None, "tid": None}]
    assert ranges(*rows).threads == ((0, 0),)
    assert recognised_ranges(traces.events(rows).drop("pid", "tid", "cycle")).threads == ((0, 0),)


@pytest.mark.parametrize("rows", [[], [traces.phase("no phase", 0, 9)]])
def test_nothing_recognised_is_no_range(rows: list[dict[str, Any]]) -> None:
    found = ranges(*rows)
    assert (len(found), found.threads, found.crossing) == (0, (), {})
    assert covered(found) == [[], [], []]
    assert found.innermost(np.array([-1, -1]), np.array([0, 5])).tolist() == [-1, -1]


def test_a_range_nested_in_its_own_phase_is_merged_into_it() -> None:
    found = ranges(
        traces.phase("spec.verify", 2, 8),  # inside of the third
        traces.phase("spec.verify", 5, 10),  # to the same end
        traces.phase("spec.verify", 0, 10),
        traces.phase("spec.verify", 0, 9),  # from the same start
        traces.phase("spec.verify", 1, 3),
        traces.phase("spec.verify", 4, 11),  # reaches beyond it
        traces.phase("spec.verify", 10, 11),  # inside of the one that reached beyond
        traces.phase("spec.draft", 3, 4),  # another phase
        traces.phase("spec.draft_extend", 2, 9),
        traces.phase("spec.verify", 2, 9, tid=2),  # another thread
        traces.phase("spec.draft", 2, 9, tid=2),
        traces.phase("spec.verify", 12, 13),
    )
    assert listed(found) == [
        ("verify", 0, 10),
        ("verify", 4, 11),
        ("draft", 3, 4),
        ("draft_extend", 2, 9),
        ("verify", 2, 9),
        ("draft", 2, 9),
        ("verify", 12, 13),
    ]


def test_of_equal_ranges_of_a_phase_the_one_listed_first_stays() -> None:
    found = ranges(traces.phase("spec.verify", 0, 9, cycle=4), traces.phase("spec.verify", 0, 9, cycle=5))
    assert found.cycle.tolist() == [4]


def test_phases_of_many_threads_stay_apart() -> None:
    """Threads 0 to 11, each with one range of every leaf phase at the same time: none lies in another one of its own phase."""
    leaves = ("draft", "verify", "draft_extend")
    found = ranges(*(traces.phase(f"spec.{leaf}", 0, 10, tid=tid) for tid in range(12) for leaf in leaves))
    assert len(found) == 36
    assert found.crossing == {}


def test_other_leaves_inside_a_speculative_one_are_no_instances() -> None:
    found = ranges(
        traces.phase("spec.decode", 30, 40),  # around no one, alone
        traces.phase("spec.decode", 2, 9),  # inside
        traces.phase("spec.decode", 0, 10),  # the same stretch
        traces.phase("spec.draft", 0, 10),
        traces.phase("spec.decode", 9, 11),  # reaches beyond
        traces.phase("spec.idle", 12, 13),
        traces.phase("spec.verify", 12, 20),
        traces.phase("spec.draft", 13, 15),
        traces.phase("spec.prefill", 16, 18),  # behind the draft, still inside of the verify
        traces.phase("spec.decode", 21, 22, tid=0),  # threads: one with nothing to be inside of, listed before
        traces.phase("spec.decode", 3, 5, tid=2),  # and one behind
        traces.phase("spec.decode", 4, 5, tid=3),
        traces.phase("spec.draft", 3, 5, tid=3),
        traces.phase("spec.decode", 1, 5, tid=3),  # begins before it
        traces.phase("spec.cycle", 0, 40),
        traces.phase("spec.decode", 31, 32, tid=4),
        traces.phase("spec.prefill", 30, 33, tid=4),  # is none of the speculative ones
    )
    assert listed(found) == [
        ("decode", 30, 40),
        ("draft", 0, 10),
        ("decode", 9, 11),
        ("verify", 12, 20),
        ("draft", 13, 15),
        ("decode", 21, 22),
        ("decode", 3, 5),
        ("draft", 3, 5),
        ("decode", 1, 5),
        ("cycle", 0, 40),
        ("decode", 31, 32),
        ("prefill", 30, 33),
    ]


def test_a_leaf_inside_a_merged_one_is_inside_all_the_same() -> None:
    """The draft from 2 to 6 is merged away; what lies in it lies in the outer one."""
    found = ranges(
        traces.phase("spec.draft", 0, 9), traces.phase("spec.draft", 2, 6), traces.phase("spec.decode", 3, 5)
    )
    assert listed(found) == [("draft", 0, 9)]


def test_levels_are_speculative_leaves_then_other_leaves_then_cycles() -> None:
    found = ranges(
        traces.phase("spec.cycle", 0, 50),
        traces.phase("spec.prefill", 0, 20),
        traces.phase("spec.verify", 10, 40),
        traces.phase("spec.draft", 15, 18),
    )
    assert covered(found) == [[(10, 15, 2), (15, 18, 3), (18, 40, 2)], [(0, 20, 1)], [(0, 50, 0)]]
    assert covered(found, [3, 1]) == [[(15, 18, 3)], [(0, 20, 1)], []]


@pytest.mark.parametrize("order", [1, -1])
def test_the_innermost_is_the_last_to_start_then_the_shorter(order: int) -> None:
    rows = [
        traces.phase("spec.verify", 0, 20),
        traces.phase("spec.draft", 0, 10),
        traces.phase("spec.draft_extend", 5, 30),
    ][::order]
    found = ranges(*rows)
    names = [(start, end, rows[owner]["name"]) for start, end, owner in covered(found)[0]]
    assert names == [(0, 5, "spec.draft"), (5, 30, "spec.draft_extend")]


def test_of_equal_ranges_the_one_listed_last_is_innermost() -> None:
    found = ranges(traces.phase("spec.verify", 0, 20), traces.phase("spec.draft", 0, 20))
    assert covered(found)[0] == [(0, 20, 1)]


def test_an_instant_is_in_the_innermost_range_of_its_own_thread() -> None:
    found = ranges(
        traces.phase("spec.cycle", 0, 50, tid=2),
        traces.phase("spec.verify", 10, 20, tid=2),
        traces.phase("spec.draft", 20, 30, tid=2),
        traces.phase("spec.idle", 5, 12, tid=2),
        traces.phase("spec.prefill", 15, 18, tid=4),
        traces.phase("spec.decode", 60, 70, tid=3),
    )
    assert found.threads == ((1, 2), (1, 3), (1, 4))
    asked = [(0, 0), (0, 9), (0, 5), (0, 10), (0, 19), (0, 20), (0, 30), (0, 49), (0, 50)]
    want = [0, 3, 3, 1, 1, 2, 0, 0, -1]
    asked += [(2, 15), (2, 14), (2, 18), (2, 17), (-1, 16)]  # nothing is asked of the thread in between
    want += [4, -1, -1, 4, -1]
    threads, instants = (np.array(column, dtype=np.int64) for column in zip(*asked, strict=True))
    assert found.innermost(threads, instants).tolist() == want
    assert found.innermost(threads[::-1], instants[::-1]).tolist() == want[::-1]


def test_neighbours_that_overlap_without_nesting_are_counted_by_their_phases() -> None:
    found = ranges(
        traces.phase("spec.draft", 0, 10),
        traces.phase("spec.verify", 9, 20),  # crosses the draft
        traces.phase("spec.draft_extend", 20, 30),  # touches
        traces.phase("spec.idle", 22, 30),  # nested: no instance any more
        traces.phase("spec.draft", 40, 50),
        traces.phase("spec.verify", 45, 55),  # crosses again
        traces.phase("spec.draft_extend", 54, 60),  # crosses the verify
        traces.phase("spec.verify", 70, 80),
        traces.phase("spec.draft", 72, 80),  # nested, to the same end
        traces.phase("spec.draft", 90, 95),
        traces.phase("spec.verify", 90, 99),  # nested, from the same start
        traces.phase("spec.cycle", 92, 120),  # a cycle is no leaf
        traces.phase("spec.draft", 5, 15, tid=2),  # another thread's ranges meet only each other
        traces.phase("spec.verify", 10, 16, tid=2),
    )
    assert found.crossing == {("draft", "verify"): 3, ("verify", "draft_extend"): 1}


def test_threads_do_not_cross_each_other() -> None:
    found = ranges(
        traces.phase("spec.draft", 0, 10, tid=1),
        traces.phase("spec.verify", 5, 15, tid=2),
        traces.phase("spec.draft", 16, 20, tid=2),
        traces.phase("spec.verify", 12, 14, tid=1),
    )
    assert found.crossing == {}


def test_a_phase_map_names_ranges_of_other_programs() -> None:
    events = traces.events([traces.phase("my_verify", 0, 9), traces.phase("my_draft", 10, 19)])
    found = recognised_ranges(events, {"my_verify": "verify"})
    assert listed(found) == [("verify", 0, 9)]
    assert found.unrecognised == ("my_draft",)
