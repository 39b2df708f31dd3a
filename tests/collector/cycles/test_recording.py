"""What a recording keeps of cycles and phases, what it drops and counts, and when it takes another segment; its clocks are set by hand."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from speccollect.config import WindowSettings
from speccollect.cycles import recording as module
from speccollect.cycles import segment as seg
from speccollect.cycles.phase_codes import CODES, KNOWN_NAMES
from speccollect.cycles.ranges import NvtxRanges
from speccollect.cycles.recording import SEGMENT_SECONDS, SEGMENTS, STEP_NS, Lost, Recording
from speccollect.cycles.segment import CYCLE_CAPACITY, PHASE_CELLS, PHASE_COLUMNS, TOKEN_BITS, UNKNOWN, Segment
from speccollect.windows.window import Windows

START_NS = 1_790_000_000_000_000_000
SECOND_NS = 1_000_000_000
ROOM_CELLS = PHASE_CELLS - 256 * PHASE_COLUMNS
"""Cells of phases up to which a segment takes another cycle."""


class Clocks:
    """The host's two clocks."""

    def __init__(self) -> None:
        self.unix_ns = START_NS
        self.steady_ns = 500
        self.held_ns = 0
        """What the thread loses each time it asks for the Unix time."""

    def unix(self) -> int:
        self.steady_ns += self.held_ns
        return self.unix_ns

    def pass_by(self, ns: int) -> None:
        self.unix_ns += ns
        self.steady_ns += ns


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    made = Clocks()
    monkeypatch.setattr(module, "_now", made.unix)
    monkeypatch.setattr(module, "_steady", lambda: made.steady_ns)
    return made


@pytest.fixture
def recording(clocks: Clocks) -> Recording:
    return Recording(3, WindowSettings(repeat=0), NvtxRanges(), 77)


def cycle(recording: Recording, mode: str = "speculative") -> int:
    number = recording.begin_cycle(mode, 1, 3, ["a"], 20)
    recording.end_phase(recording.begin_phase("verify"))
    recording.end_cycle(number, 1)
    return number


def current(recording: Recording) -> Segment:
    assert recording.segment is not None
    return recording.segment


def without_room(recording: Recording) -> None:
    """All segments wait for the disk; one without rows, which would be used again, is taken away."""
    recording.free.clear()
    recording.rotate()
    if recording.segment is not None:
        recording.segment = None
        recording.rotate()


def test_what_was_lost_is_told_by_kind_and_in_all() -> None:
    lost = Lost()
    assert lost.total() == 0
    for number, kind in enumerate(Lost.__slots__):
        setattr(lost, kind, 10**number)
    assert lost.section() == {
        "cycles": 1,
        "late_accepts": 10,
        "other_thread": 100,
        "phases": 1000,
        "requests": 10_000,
        "unclosed": 100_000,
        "windows": 1_000_000,
    }
    assert lost.total() == 1_111_111


def test_a_new_recording_has_lost_nothing_and_stands_in_its_first_segment(recording: Recording) -> None:
    assert (recording.number, recording.tid, recording.thread) == (3, 77, threading.get_ident())
    assert (recording.started_ns, recording.next_cycle, recording.open_cycle) == (START_NS, 0, UNKNOWN)
    assert recording.lost.total() == 0
    assert recording.names == list(KNOWN_NAMES)
    assert (recording.window, recording.warmup, recording.ranges) == (None, False, False)
    assert len(recording.free) == SEGMENTS - 1
    assert SEGMENTS == 16
    segment = current(recording)
    assert (segment.serial, segment.first_cycle, segment.window, segment.warmup, segment.sealed) == (
        1,
        0,
        None,
        False,
        False,
    )
    assert segment.opened_at_ns == 500


def test_the_cells_of_a_cycle_are_what_it_was_begun_and_ended_with(recording: Recording, clocks: Clocks) -> None:
    first = recording.begin_cycle("speculative", 2, 3, ["a", "b"], 100)
    clocks.pass_by(40)
    recording.end_cycle(first, 4)
    second = recording.begin_cycle("decode", 1, None, ["c"], None)
    clocks.pass_by(5)
    recording.end_cycle(second, None)
    third = recording.begin_cycle("idle", 0, 0, [], 0)
    assert (first, second, third, recording.next_cycle) == (0, 1, 2, 3)
    assert current(recording).rows == [
        [START_NS, START_NS + 40, CODES["speculative"], 2, 3, 4, 100, ("a", "b"), None, None],
        [START_NS + 40, START_NS + 45, CODES["decode"], 1, UNKNOWN, UNKNOWN, UNKNOWN, ("c",), None, None],
        [START_NS + 45, 0, CODES["idle"], 0, 0, UNKNOWN, 0, (), None, None],
    ]
    columns = (seg.START, seg.END, seg.MODE, seg.BATCH_SIZE, seg.DRAFT_TOKENS, seg.GRAPH_BATCH_SIZE, seg.CONTEXT_TOKENS)
    assert current(recording).cycles[0, columns].tolist() == current(recording).rows[0][: seg.CYCLE_COLUMNS]


def test_the_cells_of_a_phase_are_its_ends_its_cycle_and_its_name(recording: Recording, clocks: Clocks) -> None:
    prefill = recording.begin_phase("prefill")
    clocks.pass_by(7)
    recording.end_phase(prefill)
    recording.begin_cycle("speculative", 1, 3, ["a"], 20)
    verify = recording.begin_phase("verify")
    sample = recording.begin_phase("sample")
    clocks.pass_by(2)
    recording.end_phase(sample)
    clocks.pass_by(1)
    recording.end_phase(verify)
    recording.begin_phase("draft")
    assert current(recording).phases[:, [seg.START, seg.END, seg.CYCLE, seg.NAME]].tolist() == [
        [START_NS, START_NS + 7, UNKNOWN, CODES["prefill"]],
        [START_NS + 7, START_NS + 10, 0, CODES["verify"]],
        [START_NS + 7, START_NS + 9, 0, CODES["sample"]],
        [START_NS + 10, 0, 0, CODES["draft"]],
    ]


def test_a_name_that_is_not_known_gets_a_code_of_its_own(recording: Recording) -> None:
    recording.begin_phase("lookahead")
    recording.begin_cycle("medusa", 1, 3, ["a"], 20)
    recording.begin_phase("lookahead")
    assert recording.names == [*KNOWN_NAMES, "lookahead", "medusa"]
    assert current(recording).phases[:, seg.NAME].tolist() == [len(KNOWN_NAMES)] * 2
    assert current(recording).cycles[:, seg.MODE].tolist() == [len(KNOWN_NAMES) + 1]


def test_names_that_are_made_of_data_are_refused_beyond_256(recording: Recording) -> None:
    for number in range(len(KNOWN_NAMES), 256):
        recording.begin_phase(f"request {number}")
    with pytest.raises(ValueError, match="more than 256 names of phases; the last one is 'one more'"):
        recording.begin_phase("one more")
    recording.begin_phase("request 255")
    assert len(recording.names) == 256


def test_a_message_is_said_once_and_the_fiftieth_is_the_last(
    recording: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="speccollect"):
        for number in (0, *range(60), 3):
            recording.say(f"message {number}")
    assert recording.messages == [f"message {number}" for number in range(50)]
    assert [record.getMessage() for record in caplog.records] == recording.messages


# ---- segments


def test_a_segment_without_rows_is_used_again(recording: Recording) -> None:
    first = current(recording)
    recording.rotate()
    assert not recording.handed
    assert recording.free[-1] is first
    assert len(recording.free) == SEGMENTS - 1
    assert (current(recording).serial, first.serial) == (2, 1)


@pytest.mark.parametrize("kept", ["cycle", "phase", "profile"])
def test_a_segment_with_anything_in_it_is_handed_over(recording: Recording, kept: str) -> None:
    first = current(recording)
    if kept == "cycle":
        recording.begin_cycle("decode", 1, None, ["a"], None)
    elif kept == "phase":
        recording.begin_phase("prefill")
    else:
        first.profile = object()  # type: ignore[assignment]
    recording.rotate()
    assert list(recording.handed) == [first]
    assert first not in recording.free
    assert current(recording) is not first
    assert recording.stamps is current(recording).stamps
    assert current(recording).first_cycle == recording.next_cycle


def test_a_segment_takes_what_it_is_used_for(recording: Recording, clocks: Clocks) -> None:
    cycle(recording)
    clocks.pass_by(60)
    recording.window, recording.warmup = 2, True
    recording.rotate()
    segment = current(recording)
    assert (segment.first_cycle, segment.window, segment.warmup, segment.opened_at_ns) == (1, 2, True, 560)
    segment.sealed = True
    segment.profile = object()  # type: ignore[assignment]
    segment.reset(9, None, 8, 7)
    assert (segment.first_cycle, segment.window, segment.warmup, segment.opened_at_ns) == (9, None, False, 8)
    assert (segment.sealed, segment.profile, segment.serial) == (False, None, 7)


def test_a_window_that_is_held_back_is_handed_over_later_and_once(recording: Recording) -> None:
    cycle(recording)
    first = current(recording)
    recording.hold()
    assert recording.held is first
    assert not recording.handed
    cycle(recording)
    recording.accept(0, [2], [1])
    assert first.rows[0][seg.ACCEPT_LENGTHS] == (2,)
    recording.hand_held()
    recording.hand_held()
    assert list(recording.handed) == [first]
    assert recording.held is None


def test_nothing_is_held_back_where_there_is_no_segment(recording: Recording) -> None:
    without_room(recording)
    recording.hold()
    recording.hand_held()
    assert not recording.handed


@pytest.mark.parametrize(
    ("passed_ns", "rotates"), [(SEGMENT_SECONDS * SECOND_NS, False), (SEGMENT_SECONDS * SECOND_NS + 1, True)]
)
def test_a_segment_is_handed_over_after_ten_seconds(
    recording: Recording, clocks: Clocks, passed_ns: int, rotates: bool
) -> None:
    assert SEGMENT_SECONDS == 10
    cycle(recording)
    clocks.pass_by(passed_ns)
    cycle(recording)
    assert len(recording.handed) == int(rotates)
    assert current(recording).first_cycle == int(rotates)
    assert len(current(recording).rows) == (1 if rotates else 2)


@pytest.mark.parametrize(("rows", "rotates"), [(CYCLE_CAPACITY - 1, False), (CYCLE_CAPACITY, True)])
def test_a_segment_is_handed_over_when_its_cycles_are_full(recording: Recording, rows: int, rotates: bool) -> None:
    for _ in range(rows):
        recording.end_cycle(recording.begin_cycle("decode", 1, None, ["a"], None), None)
    assert not recording.handed
    recording.begin_cycle("decode", 1, None, ["a"], None)
    assert len(recording.handed) == int(rotates)
    assert recording.lost.total() == 0


@pytest.mark.parametrize(("cells", "rotates"), [(ROOM_CELLS, False), (ROOM_CELLS + PHASE_COLUMNS, True)])
def test_a_segment_is_handed_over_when_its_phases_leave_no_room_for_a_cycle(
    recording: Recording, cells: int, rotates: bool
) -> None:
    cycle(recording)
    recording.stamps.extend([1] * (cells - len(recording.stamps)))
    cycle(recording)
    assert len(recording.handed) == int(rotates)
    assert recording.lost.total() == 0
    assert len(recording.stamps) == (PHASE_COLUMNS if rotates else ROOM_CELLS + PHASE_COLUMNS)


def test_a_window_is_one_segment_and_what_does_not_fit_is_counted(recording: Recording, clocks: Clocks) -> None:
    recording.window = 0
    recording.rotate()
    window = current(recording)
    cycle(recording)
    clocks.pass_by(SEGMENT_SECONDS * SECOND_NS + 1)
    window.stamps.extend([1] * (ROOM_CELLS - len(window.stamps)))
    cycle(recording)
    assert (len(window.stamps), recording.lost.phases) == (ROOM_CELLS + PHASE_COLUMNS, 0)
    cycle(recording)
    cycle(recording)
    assert recording.lost.phases == 2
    assert current(recording) is window
    assert (len(window.stamps), len(window.rows)) == (ROOM_CELLS + PHASE_COLUMNS, 4)
    window.rows.extend([window.rows[0]] * (CYCLE_CAPACITY - 4))
    cycle(recording)
    assert (len(window.rows), recording.lost.cycles) == (CYCLE_CAPACITY, 1)
    assert not recording.handed
    # Behind it there is room again.
    recording.window = None
    recording.rotate()
    cycle(recording)
    assert (len(current(recording).rows), len(recording.stamps)) == (1, PHASE_COLUMNS)


def test_without_a_segment_rows_are_dropped_and_counted_until_there_is_one(recording: Recording) -> None:
    cycle(recording)
    spare = Segment()
    without_room(recording)
    for _ in range(3):
        cycle(recording)
    assert (recording.lost.cycles, recording.lost.phases) == (3, 3)
    assert recording.lost.total() == 6
    recording.free.append(spare)
    assert cycle(recording) == 4
    assert current(recording) is spare
    assert (spare.first_cycle, len(spare.rows), len(spare.stamps)) == (4, 1, PHASE_COLUMNS)
    assert (recording.lost.cycles, recording.lost.phases) == (3, 3)


def test_phases_that_a_hook_writes_where_there_is_no_segment_are_counted(recording: Recording) -> None:
    """Hooks write stamps themselves, four cells a phase, into ``stamps``; one of them ends after it was counted."""
    without_room(recording)
    dropped = recording.stamps
    dropped += (1, 2, 0, 3)
    dropped += (3, 0, 0, 3)
    recording.begin_cycle("decode", 1, None, ["a"], None)
    assert recording.lost.phases == 2
    assert recording.stamps is not dropped
    dropped[PHASE_COLUMNS + seg.END] = 9
    recording.begin_cycle("decode", 1, None, ["a"], None)
    assert recording.lost.phases == 2
    recording.stamps.extend((1, 2, 0, 3))
    recording.close()
    assert recording.lost.phases == 3


# ---- the host's clock


@pytest.mark.parametrize(
    ("step_ns", "said"),
    [(STEP_NS, ""), (STEP_NS + 1, "forward by 0.020"), (-STEP_NS, ""), (-3 * SECOND_NS, "back by 3.000")],
)
def test_a_clock_that_was_set_is_told_of(recording: Recording, clocks: Clocks, step_ns: int, said: str) -> None:
    assert STEP_NS == 20_000_000
    cycle(recording)
    clocks.pass_by(SECOND_NS)
    clocks.unix_ns += step_ns
    recording.rotate()
    expected = f"the host's clock was set {said} s shortly before cycle 1: times before and after it don't compare"
    assert recording.messages == ([expected] if said else [])
    # It is compared with the last reading, not with the first.
    clocks.pass_by(SECOND_NS)
    recording.next_cycle = 2
    recording.rotate()
    assert len(recording.messages) == bool(said)


@pytest.mark.parametrize(("held_ns", "said"), [(STEP_NS // 4, 1), (STEP_NS // 4 + 1, 0)])
def test_a_thread_that_was_held_between_the_clocks_reads_neither(
    recording: Recording, clocks: Clocks, held_ns: int, said: int
) -> None:
    clocks.unix_ns += 2 * STEP_NS
    clocks.held_ns = held_ns
    recording.rotate()
    assert len(recording.messages) == said
    clocks.held_ns = 0
    recording.rotate()
    assert len(recording.messages) == 1


# ---- cycles


def test_a_cycle_ends_once(recording: Recording, clocks: Clocks) -> None:
    number = cycle(recording)
    recording.end_cycle(number, 8)
    assert recording.lost.unclosed == 1
    assert current(recording).rows[0][seg.GRAPH_BATCH_SIZE] == 1
    recording.begin_cycle("decode", 1, None, ["a"], None)
    clocks.pass_by(5)
    recording.end_cycle(number, 8)
    recording.end_cycle(number, 8)
    assert recording.lost.unclosed == 3
    assert current(recording).rows[1][seg.END] == 0


def test_a_cycle_that_an_exception_left_open_stays_without_an_end(recording: Recording, clocks: Clocks) -> None:
    first = recording.begin_cycle("speculative", 1, 3, ["a"], 20)
    clocks.pass_by(5)
    second = recording.begin_cycle("speculative", 1, 3, ["a"], 20)
    recording.end_cycle(first, 4)
    recording.end_cycle(second, 4)
    assert current(recording).cycles[:, seg.END].tolist() == [0, START_NS + 5]
    assert recording.open_cycle == UNKNOWN


def test_a_cycle_without_a_row_ends_quietly(recording: Recording) -> None:
    cycle(recording)
    handed = current(recording)
    without_room(recording)
    number = cycle(recording)
    recording.end_cycle(number, 4)
    assert handed.rows[0][seg.GRAPH_BATCH_SIZE] == 1
    assert (recording.lost.cycles, recording.lost.unclosed) == (1, 1)


# ---- accept lengths


def test_accept_lengths_reach_the_row_of_their_cycle(recording: Recording) -> None:
    for _ in range(3):
        cycle(recording)
    lengths = [2, None]
    recording.accept(1, lengths, (1, 0))
    lengths.append(9)
    recording.accept(2, None, None)
    rows = current(recording).rows
    assert [row[seg.ACCEPT_LENGTHS :] for row in rows] == [
        [None, None],
        [(2, None), (1, 0)],
        [seg.NO_LENGTHS, seg.NO_LENGTHS],
    ]
    recording.rotate()
    recording.accept(0, np.array([3]).tolist(), range(2, 3))
    assert rows[0][seg.ACCEPT_LENGTHS :] == [(3,), (2,)]
    assert recording.lost.late_accepts == 0


@pytest.mark.parametrize("asked", [-1, 3, 99])
def test_accept_lengths_of_no_cycle_are_late(recording: Recording, asked: int) -> None:
    for _ in range(3):
        cycle(recording)
    recording.accept(asked, [2], [1])
    assert recording.lost.late_accepts == 1
    assert all(row[seg.ACCEPT_LENGTHS] is None for row in current(recording).rows)


def test_accept_lengths_find_the_segment_among_those_that_were_handed_over(recording: Recording) -> None:
    for _ in range(4):
        cycle(recording)
        cycle(recording)
        recording.rotate()
    for number in range(8):
        recording.accept(number, [number + 1], [number])
    assert [[row[seg.ACCEPT_LENGTHS] for row in one.rows] for one in recording.handed] == [
        [(1,), (2,)],
        [(3,), (4,)],
        [(5,), (6,)],
        [(7,), (8,)],
    ]
    assert recording.lost.late_accepts == 0
    without_room(recording)
    recording.accept(0, [9], [8])
    assert recording.handed[0].rows[0][seg.ACCEPT_LENGTHS] == (9,)


class OnDevice(list[int]):
    """Looks like a tensor, but is a list."""

    device = "cuda:0"


def test_values_on_a_device_are_refused_before_anything_is_told(recording: Recording) -> None:
    torch = pytest.importorskip("torch")
    cycle(recording)
    for lengths, accepted in ((torch.tensor([1]), [0]), ([1], torch.tensor([0]))):
        with pytest.raises(TypeError, match="accept lengths must be host values, not Tensor"):
            recording.accept(0, lengths, accepted)
        assert current(recording).rows[0][seg.ACCEPT_LENGTHS] is None
    recording.accept(0, OnDevice([1]), OnDevice([0]))
    assert current(recording).rows[0][seg.ACCEPT_LENGTHS :] == [(1,), (0,)]


def test_requests_are_kept_up_to_a_limit(recording: Recording, clocks: Clocks) -> None:
    for number in range(CYCLE_CAPACITY + 2):
        recording.request_finished(f"r{number}", 10, number)
    assert len(recording.requests) == CYCLE_CAPACITY
    assert recording.requests[-1] == (f"r{CYCLE_CAPACITY - 1}", 10, CYCLE_CAPACITY - 1, START_NS)
    assert recording.lost.requests == 2


# ---- phases


def test_tokens_of_phases_tell_their_place_and_their_segment(recording: Recording) -> None:
    assert [recording.begin_phase("verify") for _ in range(2)] == [1 << TOKEN_BITS, 1 << TOKEN_BITS | PHASE_COLUMNS]
    recording.rotate()
    assert recording.begin_phase("verify") == 2 << TOKEN_BITS


def test_phases_are_refused_where_the_segment_is_full(recording: Recording) -> None:
    recording.stamps.extend([1] * (PHASE_CELLS - PHASE_COLUMNS))
    assert recording.begin_phase("verify") == 1 << TOKEN_BITS | PHASE_CELLS - PHASE_COLUMNS
    assert recording.begin_phase("verify") == -1
    assert recording.begin_phase("verify") == -1
    assert (len(recording.stamps), recording.lost.phases) == (PHASE_CELLS, 2)


def test_a_phase_of_an_earlier_segment_closes_nothing_in_this_one(recording: Recording) -> None:
    earlier = [recording.begin_phase("draft"), recording.begin_phase("verify")]
    first = current(recording)
    recording.rotate()
    recording.begin_phase("verify")
    for token in earlier:
        recording.end_phase(token)
    assert recording.stamps[seg.END] == 0
    assert first.phases[:, seg.END].tolist() == [0, 0]
    recording.end_phase(-1)
    # Of a place that this segment does not have yet.
    recording.end_phase(2 << TOKEN_BITS | PHASE_COLUMNS)
    assert len(recording.stamps) == PHASE_COLUMNS
    without_room(recording)
    recording.end_phase(earlier[0])


# ---- ranges that other tools see


class Heard(NvtxRanges):
    """Ranges as a tool would see them."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[Any] = []

    @property
    def listening(self) -> bool:
        return True

    def push(self, name: str, cycle: int) -> None:
        self.said.append((name, cycle))
        self.depth += 1

    def pop(self) -> None:
        self.said.append("pop")
        self.depth -= 1


def test_ranges_are_opened_and_closed_around_cycles_and_phases(clocks: Clocks) -> None:
    heard = Heard()
    recording = Recording(1, WindowSettings(repeat=0), heard, 77)
    assert recording.ranges
    recording.end_phase(recording.begin_phase("prefill"))
    cycle(recording)
    assert heard.said == [("prefill", -1), "pop", ("cycle", 0), ("verify", 0), "pop", "pop"]
    heard.said.clear()
    recording.begin_cycle("decode", 1, None, ["a"], None)
    recording.begin_phase("decode")
    recording.begin_cycle("decode", 1, None, ["a"], None)
    assert heard.said == [("cycle", 1), ("decode", 1), "pop", "pop", ("cycle", 2)]
    recording.close()
    assert heard.depth == 0


def test_ranges_inside_a_window_are_the_profilers(clocks: Clocks) -> None:
    said: list[str] = []

    @contextmanager
    def range_of(name: str) -> Iterator[None]:
        said.append(name)
        yield
        said.append(f"end {name}")

    recording = Recording(1, WindowSettings(skip=1000), NvtxRanges(), 77)
    recording.windows = Windows(recording.settings)
    assert not recording.ranges
    cycle(recording)
    assert not said
    recording.ranges = True
    recording.enter("draft")  # outside of a window
    recording.leave()
    assert not said
    recording.windows.range_type = range_of
    cycle(recording)
    assert said == ["cycle", "verify", "end verify", "end cycle"]
    said.clear()
    number = recording.begin_cycle("speculative", 1, 3, ["a"], 20)
    token = recording.begin_phase("verify")
    # The window closes inside a cycle: what is open still ends.
    recording.windows.range_type, recording.ranges = None, False
    recording.end_phase(token)
    recording.end_cycle(number, 1)
    assert said == ["cycle", "verify", "end verify", "end cycle"]
    said.clear()
    recording.windows.range_type, recording.ranges = range_of, True
    recording.begin_cycle("speculative", 1, 3, ["a"], 20)
    recording.begin_phase("verify")
    recording.close()
    assert said == ["cycle", "verify", "end verify", "end cycle"]


@pytest.mark.parametrize(
    ("mode", "counted"), [("speculative", 1), ("decode", 1), ("mixed", 1), ("prefill", 0), ("idle", 0)]
)
def test_windows_count_cycles_that_commit_tokens(clocks: Clocks, mode: str, counted: int) -> None:
    recording = Recording(1, WindowSettings(skip=5, warmup=0, record=1, repeat=1), NvtxRanges(), 77)
    counting = Counting(recording.settings)
    recording.windows = counting
    cycle(recording, mode)
    assert counting.steps == counted


class Counting(Windows):
    def __init__(self, settings: WindowSettings) -> None:
        super().__init__(settings)
        self.steps = 0

    def step(self, recording: Recording) -> None:
        self.steps += 1
        super().step(recording)


def test_the_end_hands_over_what_there_is(recording: Recording) -> None:
    recording.begin_cycle("decode", 1, None, ["a"], None)
    last = current(recording)
    recording.close()
    assert list(recording.handed) == [last]
    assert recording.open_cycle == UNKNOWN
    without_room(recording)
    recording.close()
    assert list(recording.handed) == [last]
