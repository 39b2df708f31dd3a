"""A compact rank's communication kernels: which replay each lies in, and what waiting and transfer come to by replay."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
import traces

from specanalyze.answers.breakdown import assemble
from specanalyze.attribution import compact_talk
from specanalyze.attribution.collective_columns import TOLD
from specanalyze.attribution.collective_match import match
from specanalyze.attribution.compact_talk import CompactTalk, TalkPart, replay_sums
from specanalyze.attribution.ranges import PHASE_CODE
from specanalyze.attribution.rank_result import RankResult, rank_result
from specanalyze.attribution.wait_table import by_replay
from specanalyze.attribution.waits import MATCH_PHASES
from specanalyze.formats.event_frame import table
from specanalyze.formats.frame_piece import FramePiece
from specanalyze.formats.rank_collector import Collector
from specanalyze.native import collect, timeline
from specanalyze.trace import RankSource, RankTrace, Trace

COLLECT = collect.compiled()
pytestmark = pytest.mark.skipif(
    COLLECT is None or timeline.compiled() is None, reason="no C compiler on this machine, or switched off"
)
ALLREDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "nvjet_tst_128x64_64x9_1x2_h_bz_coopA_TNT"
DRAFT, VERIFY = PHASE_CODE["draft"], PHASE_CODE["verify"]
OUTSIDE, UNATTRIBUTED = PHASE_CODE["outside"], PHASE_CODE["unattributed"]

Rows = list[dict[str, Any]]
Times = list[tuple[int, int]]


def result_of(rows: Rows, rank: int = 0, host: str | None = None) -> RankResult:
    """A rank read compactly."""
    assert COLLECT is not None
    events = table(traces.events(rows))
    collector = Collector(COLLECT)
    collector.add(FramePiece(events, {}))
    whole = RankTrace(str(rank), rank, "a test", events, host=host)
    compact = collector.finished(str(rank), rank, "a test", host=host)
    source = RankSource(str(rank), "a test", lambda: whole, compact=lambda: compact)
    return rank_result(source, Trace("a test", (source,)))


def talk_of(rows: Rows, rank: int = 0, host: str | None = None) -> CompactTalk:
    talk = result_of(rows, rank, host).communication
    assert isinstance(talk, CompactTalk), "it was not read compactly"
    return talk


def replays(phase: str, begin: int, kernels: list[Times], *, window: int = 0) -> Rows:
    """A phase of 1000 ns with a graph launch for each list of communication kernels; times count from its begin."""
    rows = [traces.phase(f"spec.{phase}", begin, begin + 1000, window=window)]
    for number, times in enumerate(kernels):
        rows.append(traces.launch("cudaGraphLaunch", begin + number, begin + number, window=window))
        rows += [traces.kernel(ALLREDUCE, begin + s, begin + e, begin + number, window=window) for s, e in times]
    return rows


def sums_of(*ranks: CompactTalk) -> tuple[dict[tuple[str, str], list[tuple[Any, ...]]], int]:
    """Rows of each table, and the number of matches, after a look whether the matched table says the same."""
    sums = replay_sums(ranks)
    assert sums is not None
    want = match(ranks)
    assert want is not None
    for (rank, phase), found in sums.tables.items():
        assert found.equals(by_replay(want, rank, phase))
    assert sums.matched * len(ranks) == want.collectives.height
    assert (sums.voided, sums.unmatched, sums.reasons) == (want.voided, want.unmatched, want.reasons)
    return {key: found.rows() for key, found in sums.tables.items()}, sums.matched


def test_replays_are_numbered_through_all_windows() -> None:
    rows = [
        *replays("verify", 0, [[(10, 30), (40, 60)], [(70, 95)]]),
        *replays("draft", 2000, [[(10, 20)]]),
        *replays("verify", 5000, [[(10, 40)], [], [(70, 85)]], window=1),
        traces.launch("cudaLaunchKernel", 5100, 1, window=1),
        traces.kernel(ALLREDUCE, 5110, 5125, 1, window=1),
        traces.kernel(GEMM, 5130, 5140, 1, window=1),
        *replays("draft", 7000, [[(10, 25)], [(30, 40)]], window=1),
        traces.launch("cudaLaunchKernel", 8500, 2, window=1),
        traces.kernel(ALLREDUCE, 8510, 8530, 2, window=1),
        traces.kernel(ALLREDUCE, 8540, 8545, None, window=1),
    ]
    talk = talk_of(rows)
    assert talk.kernels.select("window", "phase", "replay", "position", "start_ns", "end_ns").rows() == [
        (0, VERIFY, 0, 0, 10, 30),
        (0, VERIFY, 0, 1, 40, 60),
        (0, VERIFY, 1, 0, 70, 95),
        (0, DRAFT, 0, 0, 2010, 2020),
        (1, VERIFY, 2, 0, 5010, 5040),
        (1, VERIFY, 4, 0, 5070, 5085),
        (1, VERIFY, -1, -1, 5110, 5125),
        (1, DRAFT, 1, 0, 7010, 7025),
        (1, DRAFT, 2, 0, 7030, 7040),
        (1, OUTSIDE, -1, -1, 8510, 8530),
        (1, UNATTRIBUTED, -1, -1, 8540, 8545),
    ]
    assert {code: sizes.tolist() for code, sizes in talk.replays.items() if len(sizes)} == {
        VERIFY: [2, 1, 1, 0, 1],
        DRAFT: [1, 1, 1],
    }
    assert talk.is_plain


def test_kernels_without_any_launch_call_are_unattributed() -> None:
    rows = [traces.phase("spec.verify", 0, 100), traces.kernel(ALLREDUCE, 10, 20, None)]
    assert talk_of(rows).kernels.select("phase", "replay", "start_ns").rows() == [(UNATTRIBUTED, -1, 10)]


def test_what_few_rows_tell_stays_with_them() -> None:
    """The second and third of three collectives tell their number; what a GEMM tells is nothing to collectives."""
    rows = [
        traces.phase("spec.verify", 0, 100),
        traces.launch("cudaLaunchKernel", 1, 1),
        traces.kernel(ALLREDUCE, 10, 20, 1),
        traces.kernel(GEMM, 20, 30, 1, seq=6),
        traces.kernel(ALLREDUCE, 30, 40, 1, seq=7, elements=4096),
        traces.kernel(ALLREDUCE, 50, 60, 1, seq=8),
    ]
    talk = talk_of(rows)
    assert talk.kernels.select("index", "start_ns", "seq", "elements").rows() == [
        (0, 10, -1, None),
        (1, 30, 7, 4096),
        (2, 50, 8, None),
    ]
    assert not talk.is_plain
    assert talk_of(rows[:4]).is_plain
    both = [*rows[:3], *({**row, "window": 1} for row in rows)]
    assert not talk_of([{"window": 0, **row} for row in both]).is_plain


def test_kernels_are_found_slice_by_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact_talk, "_SLICE", 2)
    rows = [traces.phase("spec.verify", 0, 100), traces.launch("cudaLaunchKernel", 1, 1)]
    names = [GEMM, ALLREDUCE, GEMM, ALLREDUCE, ALLREDUCE, GEMM, ALLREDUCE]
    rows += [traces.kernel(name, 10 * i, 10 * i + 5, 1) for i, name in enumerate(names)]
    assert talk_of(rows).kernels["start_ns"].to_list() == [10, 30, 40, 60]


def test_waiting_is_summed_by_replay_through_all_windows() -> None:
    """The second rank comes 8 ns late to each; one replay of each phase is without records."""

    def rank(number: int, late: int) -> CompactTalk:
        def times(*pairs: tuple[int, int]) -> Times:
            return [(start + late, end) for start, end in pairs]

        return talk_of(
            [
                *replays("verify", 0, [times((10, 30), (40, 60)), times((70, 95))]),
                *replays("draft", 2000, [[], times((10, 20))]),
                *replays("verify", 5000, [times((10, 40)), [], times((70, 85))], window=1),
                traces.launch("cudaLaunchKernel", 5100, 1, window=1),
                traces.kernel(ALLREDUCE, 5110, 5125, 1, window=1),
            ],
            number,
        )

    sums = sums_of(rank(0, 0), rank(1, 8))
    assert sums == (
        {
            ("0", "draft"): [(1, 8, 2)],
            ("1", "draft"): [(1, 0, 2)],
            ("0", "verify"): [(0, 16, 24), (1, 8, 17), (2, 8, 22), (4, 8, 7)],
            ("1", "verify"): [(0, 0, 24), (1, 0, 17), (2, 0, 22), (4, 0, 7)],
        },
        6,
    )


def test_replays_that_differ_in_their_kernels_are_left_out() -> None:
    """One rank lacks a kernel of the first replay, the other one of the fourth."""

    def rank(number: int, first: Times, fourth: Times) -> CompactTalk:
        late = 5 * number
        return talk_of(
            [
                *replays("verify", 0, [first, [(100 + late, 120)]]),
                *replays("verify", 5000, [[(10 + late, 30)], fourth, [(70 + late, 90)]], window=1),
            ],
            number,
        )

    one, other = rank(0, [(10, 30), (40, 60)], [(35, 40)]), rank(1, [(10, 30)], [(35, 40), (45, 49)])
    assert sums_of(one, other) == (
        {
            ("0", "verify"): [(1, 5, 15), (2, 5, 15), (4, 5, 15)],
            ("1", "verify"): [(1, 0, 15), (2, 0, 15), (4, 0, 15)],
        },
        3,
    )
    sums = replay_sums([one, other])
    assert sums is not None
    assert sums.reasons == ["2 of 5 replays of verify differ in their communication kernels: not matched"]
    assert sums.unmatched == {"0": 3, "1": 3}


def test_a_void_match_adds_nothing_to_its_replay() -> None:
    """The second of three collectives of verify ends 300 ns apart, and the only one of draft, and both of draft_extend."""

    def rank(number: int) -> CompactTalk:
        late = 300 * number
        void = (100 + late, 110 + late)
        return talk_of(
            [
                *replays("verify", 0, [[(10 + 5 * number, 30), void, (500 + 5 * number, 520)]]),
                *replays("draft", 2000, [[void]]),
                *replays("draft_extend", 4000, [[void], [(600 + late, 610 + late)]]),
            ],
            number,
        )

    ranks = rank(0), rank(1)
    found, matched = sums_of(*ranks)
    assert {key: rows for key, rows in found.items() if rows} == {
        ("0", "verify"): [(0, 10, 30)],
        ("1", "verify"): [(0, 0, 30)],
    }
    sums = replay_sums(ranks)
    assert sums is not None
    assert (matched, sums.voided, sums.reasons, sums.unmatched) == (6, 4, [], {"0": 0, "1": 0})


def test_a_match_counts_while_ends_lie_no_further_apart_than_the_transfer() -> None:
    """Ends 12 apart after a transfer of 12 still agree, and so do those of a collective that takes no time."""

    def waiting(*times: tuple[int, int]) -> list[list[tuple[Any, ...]]]:
        found, matched = sums_of(*(talk_of(replays("verify", 0, [[pair]]), i) for i, pair in enumerate(times)))
        assert matched == 1
        return [found[str(i), "verify"] for i in range(len(times))]

    assert waiting((28, 40), (20, 52)) == [[(0, 0, 12)], [(0, 20, 12)]]
    assert waiting((28, 40), (20, 53)) == [[], []]
    assert waiting((50, 50), (40, 50)) == [[(0, 0, 0)], [(0, 10, 0)]]
    assert waiting((50, 50), (40, 51)) == [[], []]
    assert waiting((30, 50), (20, 60), (10, 72)) == [[], [], []]


def test_ends_are_compared_on_one_host_only() -> None:
    """The clock of host b is 200 ns ahead; ranks of unknown hosts count as on one."""

    def voided(*hosts: str | None, last: tuple[int, int] = (210, 230)) -> bool:
        times = [(10, 30), (14, 31), last][-len(hosts) :]
        ranks = [talk_of(replays("verify", 0, [[times[i]]]), i, host) for i, host in enumerate(hosts)]
        found, _ = sums_of(*ranks)
        return not any(found.values())

    assert not voided("a", "b")
    assert not voided("a", "a", "b")
    assert not voided(None, "b")
    assert voided(None, None)
    assert voided("a", "a")
    assert voided("b", "a", "b")
    assert voided("a", "b", "b")
    assert not voided("b", "a", "b", last=(12, 30))


def test_kernels_of_replays_that_run_at_once_keep_their_order() -> None:
    """Two replays of 40 collectives, one after the other on one rank and interleaved on the other; their hosts' clocks differ."""

    def times(replay: int, apart: int, more: int) -> Times:
        return [(1000 * k + apart * replay, 1000 * k + apart * replay + 100 + k + more * (k % 3)) for k in range(40)]

    one = talk_of(replays("verify", 0, [times(0, 0, 0), times(1, 100_000, 0)]), 0, "a")
    other = talk_of(replays("verify", 0, [times(0, 0, 1), times(1, 500, 1)]), 1, "b")
    transfer, waited = sum(100 + k for k in range(40)), sum(k % 3 for k in range(40))
    assert sums_of(one, other) == (
        {
            ("0", "verify"): [(0, 0, transfer), (1, 0, transfer)],
            ("1", "verify"): [(0, waited, transfer), (1, waited, transfer)],
        },
        80,
    )


def test_phases_of_different_numbers_of_replays_are_not_matched() -> None:
    """Three drafts against four; verify, behind it, is matched all the same."""

    def rank(number: int, drafts: tuple[int, int]) -> CompactTalk:
        first, second = ([[(10 + 20 * i, 20 + 20 * i)] for i in range(n)] for n in drafts)
        return talk_of(
            [
                *replays("draft", 0, first),
                *replays("verify", 2000, [[(10, 30)]]),
                *replays("draft", 5000, second, window=1),
            ],
            number,
        )

    assert sums_of(rank(0, (2, 1)), rank(1, (2, 2))) == (
        {("0", "verify"): [(0, 0, 20)], ("1", "verify"): [(0, 0, 20)]},
        1,
    )
    assert sums_of(rank(0, (2, 1)), rank(1, (1, 2))) == (
        {("0", "verify"): [(0, 0, 20)], ("1", "verify"): [(0, 0, 20)]},
        1,
    ), "as many in all, but not in each window"


def test_the_matched_table_is_asked_where_order_alone_does_not_tell() -> None:
    rows = replays("verify", 0, [[(10, 30)]])
    one, other = talk_of(rows), talk_of(rows, 1)
    assert replay_sums([one, other]) is not None
    assert replay_sums([one]) is None
    assert replay_sums([]) is None
    tells = talk_of([*rows[:-1], {**rows[-1], "seq": 3}], 1)
    assert replay_sums([one, tells]) is None
    moved = talk_of([{**row, "window": 1} for row in rows], 1)
    assert replay_sums([one, moved]) is None
    assert replay_sums([one, other, moved]) is None


def test_without_a_collective_nothing_is_matched() -> None:
    """And a breakdown has no matches to explain."""
    rows = [
        traces.phase("spec.verify", 0, 100),
        traces.launch("cudaGraphLaunch", 1, 1),
        traces.kernel(GEMM, 10, 20, 1),
    ]
    for more, matches in (([], False), ([traces.kernel(ALLREDUCE, 30, 40, 1)], True)):
        results = [result_of([*rows, *more], rank) for rank in (0, 1)]
        talks = [r.communication for r in results if isinstance(r.communication, CompactTalk)]
        sums = replay_sums(talks)
        assert sums is not None
        assert (sums.matched, bool(sums.tables)) == (int(matches), matches)
        whole = assemble(Trace("a test", ()), [r.breakdown for r in results])
        whole.talk = [*talks]
        assert whole.has_matches is matches
        assert whole.waiting("0", "verify").schema == dict.fromkeys(("replay", "wait_ns", "transfer_ns"), pl.Int64)


Group = tuple[str | None, list[int] | None]


def mapped(nodes: list[Group], *windows: list[tuple[int, int, int]], rank: int = 0) -> CompactTalk:
    """A rank whose collectives come from nodes of a captured graph: (phase, replay, node) of each, one replay a phase and window."""
    parts, sizes = [], []
    for window, kernels in enumerate(windows):
        phase, replay, node = np.array(kernels, dtype=np.int64).reshape(-1, 3).T
        start = 1000 * window + 20 * np.arange(len(kernels), dtype=np.int64)
        length, look = np.full(len(kernels), 10, dtype=np.uint32), np.zeros(len(kernels), dtype=np.uint16)
        told = pl.DataFrame(schema={"row": pl.Int64})
        parts.append(TalkPart(window, start, length, look, phase, replay, told, node))
        inside = phase[replay >= 0]
        sizes.append({PHASE_CODE[p]: np.array([(inside == PHASE_CODE[p]).sum()]) for p in MATCH_PHASES})
    told = pl.DataFrame(
        [{"op": "allreduce", "group": name, "group_ranks": ranks} for name, ranks in nodes], schema=TOLD
    )
    return CompactTalk(str(rank), rank, None, [ALLREDUCE], parts, sizes, told)


def test_groups_of_a_phase_are_those_of_the_nodes_in_its_replays() -> None:
    nodes: list[Group] = [("tp", [0, 1]), ("dp", None), ("tp", [0, 1]), ("ep", [0, 1]), (None, [0, 2]), ("", [0, 2])]
    draft_extend = PHASE_CODE["draft_extend"]
    talk = mapped(
        nodes,
        [(VERIFY, 0, 0), (VERIFY, 0, 2), (VERIFY, -1, 3), (DRAFT, -1, 1)],
        [(VERIFY, 0, 4), (VERIFY, 0, 5), (VERIFY, 0, 0), (draft_extend, 0, 3), (draft_extend, 0, 2)],
    )
    assert talk.groups(VERIFY) == {("tp", (0, 1)), ("", (0, 2))}
    assert talk.groups(draft_extend) == {("tp", (0, 1)), ("ep", (0, 1))}
    assert talk.groups(DRAFT) == set(), "what lies outside replays is not asked"
    assert mapped(nodes, [(VERIFY, 0, 0), (VERIFY, 0, 1)]).groups(VERIFY) is None, "a node without ranks"
    assert mapped(nodes, [(VERIFY, 0, 0), (VERIFY, 0, -1)]).groups(VERIFY) is None, "a kernel without a node"
    assert mapped(nodes, [(VERIFY, 0, 0)], [(VERIFY, 0, -1), (VERIFY, 0, -1)]).groups(VERIFY) is None
    assert talk_of(replays("verify", 0, [[(10, 30)]])).groups(VERIFY) is None, "no graph is known"


@pytest.mark.parametrize(
    ("one", "other", "summed"),
    [
        ([("tp", [0, 1])], [("tp", [0, 1])], True),
        ([("tp", [0, 1, 7])], [("tp", [0, 1, 7])], True),
        ([("tp", [0, 1])], [("dp", None)], True),
        ([("tp", [0, 1])], [("ep", [0, 1])], False),
        ([("tp", [0, 1]), ("ep", [0, 1])], [("tp", [0, 1]), ("ep", [0, 1])], False),
        ([("solo", [0])], [("solo", [1])], False),
        ([("far", [0, 7])], [("far", [0, 7])], False),
    ],
)
def test_sums_stand_for_one_group_of_all_ranks(one: list[Group], other: list[Group], summed: bool) -> None:
    """Or for kernels of which some tell no group: these count as those of all ranks."""
    ranks = [
        mapped(nodes, [(VERIFY, 0, node) for node in range(len(nodes))], rank=rank)
        for rank, nodes in enumerate((one, other))
    ]
    if summed:
        assert sums_of(*ranks)[0] == {(rank, "verify"): [(0, 0, 10 * len(one))] for rank in ("0", "1")}
    else:
        assert replay_sums(ranks) is None


def test_two_recordings_of_one_rank_are_no_group() -> None:
    ranks = [mapped([("solo", [0])], [(VERIFY, 0, 0)], rank=0) for _ in range(2)]
    assert replay_sums(ranks) is None
    assert replay_sums([mapped([("tp", [0, 1])], [(VERIFY, 0, 0)], rank=rank) for rank in (0, 1)]) is not None


def test_what_nodes_tell_stands_in_the_table() -> None:
    talk = mapped([("tp", [0, 1]), ("ep", [0, 2])], [(VERIFY, 0, 1), (VERIFY, 0, 0), (VERIFY, -1, -1)])
    assert talk.kernels.select("group", "group_ranks", "replay", "position").rows() == [
        ("ep", [0, 2], 0, 0),
        ("tp", [0, 1], 0, 1),
        (None, None, -1, -1),
    ]
