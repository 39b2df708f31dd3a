"""The writer thread: turns what the cycles left behind into closed files, off the serving thread."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from speccollect import __version__
from speccollect.control.word import recording_folder
from speccollect.cupti.buffers import rest
from speccollect.cupti.profiler import preload
from speccollect.cycles.recording import Recording
from speccollect.cycles.rows import COMMITTING_MODES, Origin, cycle_rows, phase_rows
from speccollect.cycles.segment import Segment
from speccollect.environment.fingerprint import environment
from speccollect.kineto.events import load_reader
from speccollect.nodemap.rows import node_table
from speccollect.parts.part_file import write_part
from speccollect.parts.slices import give_way
from speccollect.parts.table import event_table
from speccollect.rank.identity import Identity
from speccollect.rank.lockstep import Lockstep
from speccollect.windows.result import WindowResult, empty_window
from speccollect.windows.rows import read_window, window_table
from specschema.errors import TraceError

if TYPE_CHECKING:
    from speccollect.rank.arming import Arming

logger = logging.getLogger("speccollect")

LATE_CYCLES: Final = 64
"""Overlap scheduling tells of a cycle one iteration later; after this many cycles nobody will any more."""

LATE_SECONDS: Final = 3.0
"""The same for a server that went idle."""

TICK_SECONDS: Final = 0.05
"""Between two looks around while windows are recorded, or once the control word has moved."""

QUIET_TICK_SECONDS: Final = 0.25
"""The same with phases alone, whose buffers are handed over once in ten seconds: each look takes the interpreter from the
server, whose step then waits for it."""

IDLE_GRACE_SECONDS: Final = 0.5
"""How long a disarm may wait for the server's own poll before the writer thread takes over."""

STATUS_SECONDS: Final = 0.5
QUIET_STATUS_SECONDS: Final = 2.0
"""Between two status files, with windows and with phases alone: half a millisecond of the interpreter each."""

MAX_FILES: Final = 5000
"""A forgotten recording stops after this many files (about 14 hours) instead of filling the disk."""


class Writer(threading.Thread):
    """Writes one recording's files and its rank's status.

    It holds the interpreter only for short stretches: Arrow and Parquet work releases it, and the profiler's events
    are read in slices.
    """

    def __init__(
        self,
        recorder: Arming,
        recording: Recording,
        folder: Path,
        identity: Identity,
        server: Mapping[str, Any],
        nodes: Sequence[pa.Table],
        word: bytes,
    ) -> None:
        super().__init__(name="speccollect-writer", daemon=True)
        self._recorder = recorder
        self._recording = recording
        self._folder = folder
        self._identity = identity
        self._server = server
        self._nodes = nodes
        self._word = word
        self._origin = Origin(identity.rank, identity.pid, recording.tid)
        self._files = recording_folder(folder, recording.number)
        self._lockstep = Lockstep(self._files, identity, recording)
        self._finishing = threading.Event()
        self._failed = False
        self._message: str | None = None
        self._written = 0
        self._windows = 0
        self._unclosed = 0
        self._status_at = 0.0
        self._environment: dict[str, Any] | None = None
        self._preparing = recording.settings.repeat > 0

    # ---- called by other threads

    def announce(self) -> None:
        """Say that this rank takes part, before its first cycle: whoever waits for its files must know at once."""
        self._report("armed")

    def finish(self, message: str | None, *, failed: bool = False) -> None:
        """Write what is left, then end; ``message`` goes into the rank's status."""
        self._message = message
        self._failed = failed
        self._finishing.set()

    # ---- the thread

    def run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001  the hook boundary: a full disk must not reach the server
            self._recorder.lose(self._recording, error)
            self._message = self._message or f"writer: {error}"
            self._failed = True
        finally:
            self._report("failed" if self._failed else "done")
            rest()

    def _work(self) -> None:
        quiet = self._recording.windows is None
        if not quiet:
            load_reader()
            if self._recording.settings.cupti:
                preload()
            self._introduce()  # now, so that it falls into no window
            self._preparing, self._status_at = False, 0.0  # the next look tells so
        moved_since: float | None = None
        while True:
            self._lockstep.step()
            self._write_ready()
            if self._finishing.is_set():
                if not self._recording.handed:
                    break
                continue
            now = time.monotonic()
            if self._recorder.control_word() == self._word:
                moved_since = None
            elif moved_since is None:
                moved_since = now
            elif now - moved_since > IDLE_GRACE_SECONDS:
                if self._recorder.take_over(self._recording):
                    self._finishing.set()
                    continue
                moved_since = None
            if now - self._status_at > (QUIET_STATUS_SECONDS if quiet else STATUS_SECONDS):
                self._report("recording" if self._recording.window is not None else "armed")
            if self._written > MAX_FILES:
                raise TraceError(f"more than {MAX_FILES} files in one recording: was it forgotten?")
            self._finishing.wait(QUIET_TICK_SECONDS if quiet and moved_since is None else TICK_SECONDS)
        self._write_requests()

    def _introduce(self) -> None:
        """What ran, and the node map: before the recording's first other file.

        It takes some tens of milliseconds of the interpreter. With phases alone the first file comes with the end of the
        recording, or after ten seconds; a server's first steps after arming, the ones that are asked for, stay undisturbed.
        """
        if self._environment is None:
            self._environment = environment(self._server, pause=give_way)
            self._write_nodes()

    def _write_ready(self) -> None:
        recording = self._recording
        while recording.handed and self._ready(recording.handed[0]):
            segment = recording.handed.popleft()
            segment.sealed = True
            self._write_segment(segment)
            segment.release()
            recording.free.append(segment)

    def _ready(self, segment: Segment) -> bool:
        recording = self._recording
        if self._finishing.is_set():
            return True
        last = segment.first_cycle + segment.cycle_count
        if recording.next_cycle > last + LATE_CYCLES:
            return True
        if time.monotonic_ns() - segment.opened_at_ns > (LATE_SECONDS + 10) * 1e9:
            return True
        return segment.settled({i for i, name in enumerate(list(recording.names)) if name in COMMITTING_MODES})

    def _write_segment(self, segment: Segment) -> None:
        self._introduce()
        recording = self._recording
        names = list(recording.names)
        window: dict[str, Any] | None = None
        profile = segment.profile
        if profile is not None and not self._read(profile):
            segment.profile = profile = None
        if profile is not None:
            table, window, unclosed = window_table(segment, names, self._origin, recording.settings)
            segment.profile = None
            why = empty_window(window["window"], window["profiler"], window["device_records"], window["graph_replays"])
            if why is not None:
                recording.say(why)
                if recording.windows is not None:
                    recording.windows.choice.blind = True
            path = self._files / f"rank{self._origin.rank:05d}.window{segment.window:03d}.parquet"
            self._windows += 1
        else:
            cycles, open_cycles = cycle_rows(segment, names, self._origin)
            phases, open_phases = phase_rows(segment, names, self._origin)
            unclosed = open_cycles + open_phases
            if segment.warmup:
                window = {"warmup": [segment.first_cycle, segment.first_cycle + segment.cycle_count]}
            table = pa.concat_tables([cycles, phases])
            path = self._files / f"rank{self._origin.rank:05d}.segment{self._written:04d}.parquet"
        self._unclosed += unclosed
        write_part(path, table, self.sections(window))
        self._written += 1
        if profile is not None and profile.events is not None:
            profile.events.release()  # last: it takes longer than all the rest

    def _read(self, profile: WindowResult) -> bool:
        """Whether a window's events could be read; without them its cycles stay, with their phases."""
        try:
            read_window(profile)
        except Exception as error:  # noqa: BLE001  what the profiler saw is lost
            number = profile.info.get("window")
            self._recording.lost.windows += 1
            self._recording.say(
                f"window {number} is lost: its events could not be read ({type(error).__name__}: {error})"
            )
            if profile.events is not None:
                with contextlib.suppress(Exception):  # left to Python they would go under the interpreter lock
                    profile.events.release()
            return False
        return True

    def _write_nodes(self) -> None:
        if self._nodes:
            table = node_table(self._nodes, self._origin)
            write_part(self._files / f"rank{self._origin.rank:05d}.nodes.parquet", table, self.sections(None))

    def _write_requests(self) -> None:
        """Requests the server told of, and the last count of what was lost: the file that says the rank is whole."""
        self._introduce()
        rows: Sequence[tuple[str, int, int, int]] = list(self._recording.requests)
        table = event_table(
            len(rows),
            {
                "kind": "request",
                "rank": self._origin.rank,
                "pid": self._origin.pid,
                "name": "server.request",
                "start_ns": [row[3] for row in rows],
                "request_ids": [[row[0]] for row in rows],
                "prompt_tokens": [row[1] for row in rows],
                "completion_tokens": [row[2] for row in rows],
            },
        )
        path = self._files / f"rank{self._origin.rank:05d}.segment{self._written:04d}.parquet"
        write_part(path, table, self.sections(None, complete=True))

    # ---- what every file says

    def sections(self, window: Mapping[str, Any] | None, *, complete: bool = False) -> dict[str, Any]:
        """Metadata sections of one file, so that each is a readable trace by itself."""
        recording = self._recording
        settings = recording.settings
        windows = recording.windows
        told = self._environment or {}
        return {
            "recording": {
                "tool": "speccollect",
                "version": __version__,
                "source": "collector",
                "device": windows.device if windows is not None else told.get("device", "cpu"),
                "id": recording.number,
                "tiers": ["phases", "kernels"] if windows is not None else ["phases"],
                "settings": {name: getattr(settings, name) for name in settings.__dataclass_fields__},
                "started_ns": recording.started_ns,
                "written_ns": time.time_ns(),
                "windows": [dict(window)] if window is not None else [],
                "messages": list(recording.messages),
                "lost": self._lost(),
                "ahead": self._lockstep.ahead,
                "complete": complete,
            },
            "clock": {
                "unit": "ns",
                "epoch": "unix",
                "ranks": {str(self._identity.rank): {"clock": "CLOCK_REALTIME", "host": self._identity.host}},
            },
            "ranks": [self._identity.section()],
            "environment": told,
        }

    def _lost(self) -> dict[str, int]:
        lost = self._recording.lost.section()
        lost["unclosed"] += self._unclosed
        return lost

    def _report(self, state: str) -> None:
        self._status_at = time.monotonic()
        recording = self._recording
        messages = [self._message] if self._message else []
        messages.extend(recording.messages)
        status = self._identity.status(state, recording.number, "; ".join(messages) or None)
        status.cycles = recording.next_cycle
        status.windows = self._windows
        status.lost = sum(self._lost().values())
        status.preparing = self._preparing and state == "armed"
        try:
            self._recorder.report(self, self._folder, status)
        except OSError as error:
            logger.warning("the status of rank %d could not be written: %s", self._identity.rank, error)
