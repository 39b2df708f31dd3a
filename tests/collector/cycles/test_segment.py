"""Segments: what was written gives its memory back, and what comes too late for it is counted, never raised."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from speccollect.config import WindowSettings
from speccollect.cycles.phase_codes import CODES
from speccollect.cycles.ranges import NvtxRanges
from speccollect.cycles.recording import Recording
from speccollect.cycles.segment import ACCEPT_LENGTHS, CYCLE_COLUMNS, END, PHASE_COLUMNS, Segment


@pytest.fixture
def recording() -> Recording:
    return Recording(1, WindowSettings(repeat=0), NvtxRanges(), threading.get_native_id())


def run(recording: Recording, cycles: int) -> None:
    for _ in range(cycles):
        number = recording.begin_cycle("speculative", 1, 3, ["a"], 20)
        recording.end_phase(recording.begin_phase("verify"))
        recording.end_cycle(number, 1)


def handed(recording: Recording) -> Segment:
    """The segment in use, handed over and sealed as the writer thread does before it writes it."""
    recording.rotate()
    segment = recording.handed.popleft()
    segment.sealed = True
    return segment


def test_a_written_segment_keeps_nothing(recording: Recording) -> None:
    run(recording, 700)
    segment = handed(recording)
    assert (segment.cycle_count, len(segment.stamps)) == (700, 700 * PHASE_COLUMNS)
    segment.release()
    assert (segment.cycle_count, len(segment.stamps)) == (0, 0)


def test_a_phase_closes_where_it_was_opened_after_its_segment_was_released(recording: Recording) -> None:
    run(recording, 3)
    stamps = recording.stamps  # as a hook holds them from a phase's begin to its end
    place = len(stamps)
    recording.begin_phase("draft")
    handed(recording).release()
    stamps[place + END] = 7
    run(recording, 1)
    assert recording.segment is not None
    assert recording.segment.cycles[:, 0].size == 1
    assert not (recording.segment.phases == 7).any()


class Overtaken(Segment):
    """The writer thread releases it between the look at it and the row."""

    def holds(self, cycle: int) -> bool:
        held = super().holds(cycle)
        if held:
            self.release()
        return held


@pytest.mark.parametrize("kind", [Segment, Overtaken])
def test_accept_lengths_of_a_released_segment_are_late(recording: Recording, kind: type[Segment]) -> None:
    recording.free.clear()
    recording.free.extend([kind(), Segment()])
    recording.rotate()
    run(recording, 3)
    recording.rotate()
    if kind is Segment:
        recording.handed[0].sealed = True
        recording.handed[0].release()
    recording.accept(1, [2], [1])
    assert recording.lost.late_accepts == 1


def test_a_segment_is_settled_when_every_cycle_that_commits_tokens_has_told_them(recording: Recording) -> None:
    committing = np.array([CODES["speculative"], CODES["decode"]])
    segment = recording.segment
    assert segment is not None
    assert segment.settled(committing)
    for mode in ("prefill", "speculative", "decode"):
        recording.end_cycle(recording.begin_cycle(mode, 1, 3, ["a"], 20), 1)
    assert not segment.settled(committing)
    recording.accept(1, [2], [1])
    assert not segment.settled(committing)
    recording.accept(2, None, None)
    assert segment.settled(committing)
    assert not segment.settled(np.array([CODES["prefill"]]))


def test_phases_are_taken_slice_by_slice_and_a_phase_that_is_being_written_is_left_out(recording: Recording) -> None:
    segment = Segment()
    assert segment.phases.shape == (0, PHASE_COLUMNS)
    for count in (8192, 8192 + PHASE_COLUMNS, 3 * 8192 - PHASE_COLUMNS):
        segment.stamps = list(range(count + 3))
        assert segment.phases.ravel().tolist() == list(range(count))
        assert segment.phases.shape == (count // PHASE_COLUMNS, PHASE_COLUMNS)
        places = segment.stamps
        segment.release()
        assert places == [0] * (count + 3)


def test_cycles_are_read_slice_by_slice(recording: Recording) -> None:
    run(recording, 600)
    segment = recording.segment
    assert segment is not None
    cells = [row[:CYCLE_COLUMNS] for row in segment.rows]
    assert segment.cycles.tolist() == cells
    for count in (0, 1, 255, 256, 257, 512, 599):
        assert segment.first(count).tolist() == cells[:count]
        assert segment.first(count).shape == (count, CYCLE_COLUMNS)
    assert not segment.settled([CODES["speculative"]])
    for number in range(600):
        recording.accept(number, [2], [1])
    for late in (0, 255, 256, 511, 512, 599):
        segment.rows[late][ACCEPT_LENGTHS] = None
        assert not segment.settled([CODES["speculative"]])
        assert segment.settled([CODES["decode"]])
        segment.rows[late][ACCEPT_LENGTHS] = (1,)
        assert segment.settled([CODES["speculative"]])
