"""When a rank records: attaching to the control word, arming, disarming, and getting out of the server's way."""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import util as multiprocessing_util
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa

from speccollect.control.status import RankStatus, write_status
from speccollect.control.word import Command, ControlReader
from speccollect.cycles.ranges import NvtxRanges
from speccollect.cycles.recording import Recording
from speccollect.rank.claim import claim, other_process
from speccollect.rank.identity import find_identity, thread_id
from speccollect.rank.preload import WAIT_SECONDS, Preload
from speccollect.rank.writer import Writer
from speccollect.windows.window import open_windows
from specschema.errors import TraceError

logger = logging.getLogger("speccollect")

NodeRows: TypeAlias = Mapping[str, Sequence[Any]]
"""Columns of one captured graph's nodes, all of one length, in creation order: ``node_type``, ``module``,
``module_class``, ``op``, ``dtype``, ``elements``, ``group``, ``group_ranks``, and ``name`` where known.
``node`` (the ordinal) may be left out: it is then 0, 1, 2, ... Missing columns are null."""


LOOK_AROUND: Final = 1023
"""Polls between two looks whether the control file still has its name (a mask: one less than a power of two)."""

NEVER: Final = bytes(4)
"""Generation of a control file through which no command has been given."""

REMOVED: Final = "the folder was removed or moved while it was recorded: what had been written went with it"


class Arming:
    """The control side of a rank. Methods without an underscore never raise.

    Attributes:
        armed: the one attribute a hook has to look at: while False, nothing but ``poll`` needs to be called.
    """

    def __init__(self, folder: Path | None) -> None:
        self.armed = False
        self._folder = folder
        self._reader: ControlReader | None = None
        self._word = NEVER
        self._failed = False
        self._failed_for_good = False
        self._polls = 0
        self._recording: Recording | None = None
        self._orphan: Recording | None = None
        self._writers: list[Writer] = []
        self._speaker: Writer | None = None
        self._refused = False
        self._speaking = threading.Lock()
        self._preload = Preload()
        self._closes_at_exit = False
        self._at_exit: multiprocessing_util.Finalize | None = None
        self._transition = threading.Lock()
        self._nodes: dict[int, pa.Table] = {}
        self._node_count = 0
        self._rank: int | None = None
        self._coordinates: dict[str, int] = {}
        self._server: dict[str, Any] = {}

    def poll(self) -> None:
        """Read the control word (0.4 to 0.8 us); arm or disarm when it moved. Call it once a cycle, and while idle."""
        try:
            reader = self._reader
            if reader is None:
                if self._folder is None or self._failed:
                    return
                reader = self._attach(self._folder)
            if reader.word() != self._word:
                self._obey(reader)
            self._polls += 1
            if not self._polls & LOOK_AROUND and reader.removed():
                self._detach(reader)
            if self._orphan is not None:
                self._close_orphan()
        except Exception as error:  # noqa: BLE001  fail open: the server must go on
            self.fail("poll", error)

    def identify(
        self,
        *,
        rank: int | None = None,
        coordinates: Mapping[str, int] | None = None,
        server: str | None = None,
        server_version: str | None = None,
        server_args: Mapping[str, Any] | None = None,
        model_path: str | None = None,
    ) -> None:
        """What an engine knows about this process; optional, and best before the first ``poll``.

        Args:
            rank: global rank over everything this host's folder records, where torch's process group is not the
                whole server (replicas under data parallelism each have a rank 0).
            coordinates: ``tensor``, ``pipeline``, ``data``, ``expert`` rank.
            server: ``sglang``, ``vllm``, ...; with its version.
            server_args: the arguments it really runs with; secrets are taken out before anything is written.
            model_path: local folder of the target model, for the digest of its config.json.
        """
        try:
            if rank is not None:
                self._rank = rank
            self._coordinates.update(coordinates or {})
            told = {
                "server": server,
                "server_version": server_version,
                "server_args": dict(server_args) if server_args is not None else None,
                "model_path": model_path,
            }
            self._server.update({name: value for name, value in told.items() if value is not None})
        except Exception as error:  # noqa: BLE001  fail open
            self.fail("identify", error)

    def _attach(self, folder: Path) -> ControlReader:
        self._reader = ControlReader(folder)
        if not self._preload.is_alive() and self._preload.ident is None:
            if not self._closes_at_exit:
                self._closes_at_exit = True  # for good: what is taken off keeps its place in atexit's list
                atexit.register(self.close)
            # children of multiprocessing leave without running atexit
            self._at_exit = multiprocessing_util.Finalize(None, self.close, exitpriority=10)
            self._preload.start()
        self._tell("idle")
        return self._reader

    def _detach(self, reader: ControlReader) -> None:
        """The folder was removed (a clean-up between two runs, a cleaner of temporary files): use the one that follows."""
        with self._transition:
            logger.warning("%s was removed; a new one is made", reader.path)
            self._disarm(REMOVED, failed=True)
            self._reader = None
            self._word = NEVER
            self._failed = self._failed_for_good  # files could not be written: the new folder may take them

    def _obey(self, reader: ControlReader) -> None:
        with self._transition:
            # remembered first: a command that can't be obeyed is refused once, not once a cycle
            self._word = reader.word()
            try:
                command = reader.read()
            except TraceError as error:
                logger.warning("%s; this rank stays disarmed", error)
                self._tell("failed", str(error))
                self._disarm(str(error), failed=True)
                return
            current = self._recording
            if current is not None and (not command.armed or current.number != command.recording):
                self._disarm(None)
            if command.armed and self._recording is None and not self._failed_for_good:
                self._failed = False
                try:
                    self._arm(command)
                except (TraceError, OSError) as error:
                    # not this recording; the next one is tried again
                    logger.error("recording %d is left out: %s", command.recording, error)
                    self._tell("failed", str(error), command.recording)

    def _arm(self, command: Command) -> None:
        assert self._folder is not None
        identity = find_identity(self._rank, self._coordinates)
        claim(self._folder, identity, command.recording)
        self._preload.join(WAIT_SECONDS)
        recording = Recording(command.recording, command.windows, NvtxRanges(), thread_id())
        writer = Writer(
            self, recording, self._folder, identity, dict(self._server), list(self._nodes.values()), self._word
        )
        if command.windows.repeat:
            recording.windows = open_windows(command.windows, recording.say)
        with self._speaking:
            self._speaker, self._refused = writer, False
        writer.announce()
        writer.start()
        self._writers = [w for w in self._writers if w.is_alive()]
        self._writers.append(writer)
        self._recording = recording
        self.armed = True

    def _disarm(self, message: str | None, *, failed: bool = False) -> None:
        recording = self._recording
        self.armed = False
        self._recording = None
        if recording is None:
            return
        try:
            recording.close()
        except Exception as error:  # noqa: BLE001  what is finished must still be written
            self.fail("disarm", error, recording)
            return
        self._writers[-1].finish(message, failed=failed)

    def take_over(self, recording: Recording) -> bool:
        """Called by the writer thread: the control word moved, but the server is idle and nobody polls.

        Returns:
            Whether the recording is now the writer's alone. A profiler window that is still open can only be closed
            by the thread that opened it: it is, at its next ``poll``, and its events are dropped and counted.
        """
        with self._transition:
            if self._recording is not recording:
                return False
            self.armed = False
            self._recording = None
            if recording.windows is not None and recording.windows.attached:
                self._orphan = recording
                recording.lost.windows += 1
            recording.hand_held()
            recording.rotate()
            return True

    def control_word(self) -> bytes:
        """The generation word as the writer thread sees it."""
        reader = self._reader
        return reader.word() if reader is not None else NEVER

    def _close_orphan(self) -> None:
        orphan, self._orphan = self._orphan, None
        if orphan is not None and orphan.windows is not None:
            orphan.windows.drop()

    def _tell(self, state: str, message: str | None = None, recording: int = 0) -> None:
        if self._folder is None:
            return
        identity = find_identity(self._rank, self._coordinates)
        if other_process(self._folder, identity) is not None:
            return
        status = identity.status(state, recording, message)
        with self._speaking:
            self._refused |= recording > 0  # what became of an older recording must not replace this
            write_status(self._folder, status)

    def report(self, writer: Writer, folder: Path, status: RankStatus) -> None:
        """A writer's status, unless a newer recording has begun: whoever waits for that one would not find this rank.

        Raises:
            OSError: it could not be written.
        """
        with self._speaking:
            if self._speaker in (writer, None) and not self._refused:
                write_status(folder, status)

    def fail(self, where: str, error: BaseException, recording: Recording | None = None) -> None:
        """Log once, disarm, and let the server go on. What is already on disk stays.

        A full disk, a folder that can't be used and the like end this recording, the next one is tried again; anything
        else is a bug of ours, and this process records no more.
        """
        first = not self._failed
        self._failed = True
        self._failed_for_good |= not isinstance(error, (OSError, TraceError))
        self.armed = False
        current, self._recording = self._recording, None
        recording = recording or current
        message = f"{where}: {type(error).__name__}: {error}"
        if first:
            logger.error(
                "speccollect switched itself off, the server is not affected (%s)",
                message,
                exc_info=None if isinstance(error, TraceError) else error,
            )
        if recording is not None:
            self._abandon(recording, message)
        elif first:
            with contextlib.suppress(Exception):
                self._tell("failed", message)

    def lose(self, recording: Recording, error: Exception) -> None:
        """Called by a writer thread that can't go on: ends its recording, and never one that has begun since."""
        with self._transition:
            if recording is self._recording or not isinstance(error, (OSError, TraceError)):
                self.fail("writer", error)
            else:
                logger.warning("what was left of recording %d could not be written: %s", recording.number, error)

    def _abandon(self, recording: Recording, message: str) -> None:
        """Let go of a recording, whatever of it is broken: each step is tried even if the one before it failed."""
        with contextlib.suppress(Exception):
            if recording.windows is not None:
                # the profiler can only be stopped by the thread that started it
                if threading.get_ident() == recording.thread:
                    recording.windows.drop()
                else:
                    self._orphan = recording
        with contextlib.suppress(Exception):
            recording.hand_held()
            recording.rotate()
        with contextlib.suppress(Exception):
            self._writers[-1].finish(message, failed=True)

    def close(self) -> None:
        """The process ends, or a test does: finish the files. Waits for the writer thread, ten seconds at most."""
        try:
            with self._transition:
                self._disarm(None)
            for writer in self._writers:
                writer.join(timeout=10)
        except Exception as error:  # noqa: BLE001  fail open
            self.fail("close", error)

    @property
    def folder(self) -> Path | None:
        """Folder whose control word this process listens to; None when it is switched off."""
        return self._folder

    def finish(self) -> None:
        """Obey a disarm at once, from the thread that runs the cycles; nothing in a process that recorded nothing."""
        if self._reader is not None:
            self.poll()

    def attach_to(self, folder: Path | None) -> None:
        """Finish what runs and listen to another folder's control word from now on; None switches off.

        What the engine told of this process stays: it tells it once, when it starts.
        """
        self.close()
        rank, coordinates, server = self._rank, self._coordinates, self._server
        self._clear(folder)
        self._rank, self._coordinates, self._server = rank, coordinates, server

    def start_over(self) -> None:
        """Forget the parent's state after a fork: its files, its writer thread, its status and its rank are not ours."""
        recording = self._recording
        with contextlib.suppress(Exception):  # raised here, it would be told of, and nothing else
            if recording is not None and recording.windows is not None:
                recording.windows.forget()
        self._clear(self._folder)

    def _clear(self, folder: Path | None) -> None:
        if self._at_exit is not None:
            self._at_exit.cancel()
        nodes, count, closes = self._nodes, self._node_count, self._closes_at_exit
        self.__init__(folder)  # type: ignore[misc]  # hooks hold this very object
        self._nodes, self._node_count, self._closes_at_exit = nodes, count, closes
