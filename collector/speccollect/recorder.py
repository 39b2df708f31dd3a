"""The recorder that an engine's hooks call: one per process, inert until armed, and it never raises into the server."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import util as multiprocessing_util
from pathlib import Path
from typing import Any, TypeAlias

from speccollect.config import folder_from, switched_on
from speccollect.control import Command, ControlReader
from speccollect.identity import Identity, find_identity, thread_id
from speccollect.preload import WAIT_SECONDS, Preload
from speccollect.ranges import NvtxRanges
from speccollect.recording import Recording
from speccollect.status import RankStatus, alive, read_status, status_path, write_status
from speccollect.window import open_windows
from speccollect.writer import Writer
from specschema.errors import TraceError

logger = logging.getLogger("speccollect")

NodeRows: TypeAlias = Mapping[str, Sequence[Any]]
"""Columns of one captured graph's nodes, all of one length, in creation order: ``node_type``, ``module``,
``module_class``, ``op``, ``dtype``, ``elements``, ``group``, ``group_ranks``, and ``name`` where known.
``node`` (the ordinal) may be left out: it is then 0, 1, 2, ... Missing columns are null."""

MAX_NODES = 2_000_000
"""Nodes of all captured graphs together; further graphs are not kept, and the log says so."""


class Recorder:
    """What hooks call. Every method returns normally whatever happens; a failure disarms and is logged once.

    Attributes:
        armed: the one attribute a hook has to look at: while False, nothing but ``poll`` needs to be called.
    """

    def __init__(self, folder: Path | None) -> None:
        self.armed = False
        self._folder = folder
        self._reader: ControlReader | None = None
        self._generation = 0
        self._failed = False
        self._recording: Recording | None = None
        self._orphan: Recording | None = None
        self._writers: list[Writer] = []
        self._preload = Preload()
        self._transition = threading.Lock()
        self._nodes: dict[int, NodeRows] = {}
        self._node_count = 0
        self._rank: int | None = None
        self._coordinates: dict[str, int] = {}
        self._server: dict[str, Any] = {}

    # ---- control

    def poll(self) -> None:
        """Read the control word (about 100 ns); arm or disarm when it moved. Call it once a cycle, and while idle."""
        try:
            reader = self._reader
            if reader is None:
                if self._folder is None or self._failed:
                    return
                reader = self._attach(self._folder)
            if reader.generation() != self._generation:
                self._obey(reader)
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
        atexit.register(self.close)
        # children of multiprocessing leave without running atexit
        multiprocessing_util.Finalize(None, self.close, exitpriority=10)
        self._preload.start()
        self._tell("idle")
        return self._reader

    def _obey(self, reader: ControlReader) -> None:
        with self._transition:
            # remembered first: a command that can't be obeyed is refused once, not once a cycle
            self._generation = reader.generation()
            try:
                command = reader.read()
            except TraceError as error:
                logger.warning("%s; this rank stays disarmed", error)
                self._tell("failed", str(error))
                self._disarm(str(error))
                return
            current = self._recording
            if current is not None and (not command.armed or current.number != command.recording):
                self._disarm(None)
            if command.armed and self._recording is None and not self._failed:
                self._arm(command)

    def _arm(self, command: Command) -> None:
        assert self._folder is not None
        identity = find_identity(self._rank, self._coordinates)
        other = self._other_process(identity)
        if other is not None and other.recording == command.recording:
            raise TraceError(
                f"rank {identity.rank} is already recorded by process {other.pid} in {self._folder}: "
                "give each replica a folder of its own (SPECANALYZE_DIR)"
            )
        self._preload.join(WAIT_SECONDS)
        recording = Recording(command.recording, command.windows, NvtxRanges(), thread_id())
        writer = Writer(
            self, recording, self._folder, identity, dict(self._server), dict(self._nodes), self._generation
        )
        if command.windows.repeat:
            recording.windows = open_windows(command.windows, recording.say)
        writer.announce()
        writer.start()
        self._writers = [w for w in self._writers if w.is_alive()]
        self._writers.append(writer)
        self._recording = recording
        self.armed = True

    def _disarm(self, message: str | None) -> None:
        recording = self._recording
        self.armed = False
        self._recording = None
        if recording is not None:
            recording.close()
            self._writers[-1].finish(message)

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
            recording.rotate()
            return True

    def control_generation(self) -> int:
        """The generation word as the writer thread sees it."""
        return self._reader.generation() if self._reader is not None else self._generation

    def _close_orphan(self) -> None:
        orphan, self._orphan = self._orphan, None
        if orphan is not None and orphan.windows is not None:
            orphan.windows.drop()

    def _other_process(self, identity: Identity) -> RankStatus | None:
        """Another living process of this host that announced itself with our rank."""
        assert self._folder is not None
        other = read_status(status_path(self._folder, identity.rank))
        if other is None or other.pid == identity.pid or other.host != identity.host or not alive(other):
            return None
        return other

    def _tell(self, state: str, message: str | None = None) -> None:
        if self._folder is None:
            return
        identity = find_identity(self._rank, self._coordinates)
        if self._other_process(identity) is not None:
            return
        write_status(
            self._folder,
            RankStatus(
                rank=identity.rank,
                pid=identity.pid,
                host=identity.host,
                state=state,
                world_size=identity.world_size,
                message=message,
            ),
        )

    # ---- what hooks report

    def begin_cycle(
        self,
        mode: str,
        batch_size: int,
        draft_tokens: int | None,
        request_ids: Sequence[str],
        context_tokens: int | None = None,
    ) -> int:
        """A cycle begins on this thread: poll, then stamp.

        Args:
            mode: one of ``specschema.phases.CYCLE_MODES``.
            batch_size: requests in the batch.
            draft_tokens: tokens the draft model proposes per request; 0 without drafts, None where unknown.
            request_ids: the batch's requests, in batch order.
            context_tokens: sum of the requests' context lengths, where the host knows it.

        Returns:
            The cycle's number, from 0; -1 when not armed.
        """
        try:
            self.poll()
            recording = self._recording
            if recording is None:
                return -1
            if threading.get_ident() != recording.thread:
                recording.lost.other_thread += 1
                return -1
            return recording.begin_cycle(mode, batch_size, draft_tokens, request_ids, context_tokens)
        except Exception as error:  # noqa: BLE001  fail open
            self.fail("begin_cycle", error)
            return -1

    def end_cycle(self, cycle: int, graph_batch_size: int | None = None) -> None:
        """The cycle's host work is done; ``graph_batch_size`` is null when the target's forward ran eagerly."""
        recording = self._recording
        if cycle < 0 or recording is None:
            return
        try:
            recording.end_cycle(cycle, graph_batch_size)
        except Exception as error:  # noqa: BLE001  fail open
            self.fail("end_cycle", error)

    def begin_phase(self, name: str) -> int:
        """A phase begins: draft, verify, draft_extend, prefill, decode, idle, or a sub-phase; returns a token, or -1."""
        recording = self._recording
        if recording is None:
            return -1
        try:
            if threading.get_ident() != recording.thread:
                recording.lost.other_thread += 1
                return -1
            return recording.begin_phase(name)
        except Exception as error:  # noqa: BLE001  fail open
            self.fail("begin_phase", error)
            return -1

    def end_phase(self, token: int) -> None:
        """The phase of ``token`` ends; phases nest."""
        recording = self._recording
        if token < 0 or recording is None:
            return
        try:
            recording.end_phase(token)
        except Exception as error:  # noqa: BLE001  fail open
            self.fail("end_phase", error)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """begin_phase and end_phase around a block."""
        return self._phase(name)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        token = self.begin_phase(name)
        try:
            yield
        finally:
            self.end_phase(token)

    def accept(
        self,
        cycle: int,
        accept_lengths: Sequence[int | None] | None,
        accepted_draft_tokens: Sequence[int | None] | None,
    ) -> None:
        """What a cycle committed, per request in batch order; may come after later cycles have begun.

        Args:
            cycle: number that begin_cycle returned.
            accept_lengths: tokens committed, bonus included, tokens after a stop token excluded; host values.
            accepted_draft_tokens: what the verifier accepted.
        """
        recording = self._recording
        if cycle < 0 or recording is None:
            return
        try:
            recording.accept(cycle, accept_lengths, accepted_draft_tokens)
        except Exception as error:  # noqa: BLE001  fail open
            self.fail("accept", error)

    def request_finished(self, request_id: str, prompt_tokens: int, completion_tokens: int) -> None:
        """A request has ended, with the server's own token counts."""
        recording = self._recording
        if recording is None:
            return
        try:
            recording.request_finished(request_id, prompt_tokens, completion_tokens)
        except Exception as error:  # noqa: BLE001  fail open
            self.fail("request_finished", error)

    def note_graph(self, graph_id: int, rows: NodeRows) -> None:
        """Keep the node map of a captured graph; it is written once with the first file after arming."""
        try:
            count = max((len(column) for column in rows.values()), default=0)
            if self._node_count + count > MAX_NODES:
                logger.warning("the node map of graph %d is not kept: more than %d nodes", graph_id, MAX_NODES)
                return
            self._node_count += count
            self._nodes[graph_id] = rows
        except Exception as error:  # noqa: BLE001  fail open
            self.fail("note_graph", error)

    # ---- ends

    def fail(self, where: str, error: BaseException) -> None:
        """Log once, disarm, and let the server go on. What is already on disk stays."""
        first = not self._failed
        self._failed = True
        self.armed = False
        recording, self._recording = self._recording, None
        if not first:
            return
        message = f"{where}: {type(error).__name__}: {error}"
        try:
            logger.error(
                "speccollect switched itself off, the server is not affected (%s)",
                message,
                exc_info=None if isinstance(error, TraceError) else error,
            )
            if recording is not None:
                if recording.windows is not None:
                    # the profiler can only be stopped by the thread that started it
                    if threading.get_ident() == recording.thread:
                        recording.windows.drop()
                    else:
                        self._orphan = recording
                recording.rotate()
                self._writers[-1].finish(message, failed=True)
            else:
                self._tell("failed", message)
        except Exception:  # noqa: BLE001  nothing is left to try
            pass

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
        """Finish what runs and listen to another folder's control word from now on; None switches off."""
        self.close()
        self._clear(folder)

    def start_over(self) -> None:
        """Forget the parent's state after a fork: its files, its writer thread and its status are not ours."""
        self._clear(self._folder)

    def _clear(self, folder: Path | None) -> None:
        nodes, count = self._nodes, self._node_count
        self.__init__(folder)  # type: ignore[misc]  # hooks hold this very object
        self._nodes, self._node_count = nodes, count


_recorder: Recorder | None = None
_creation = threading.Lock()


def get_recorder() -> Recorder:
    """The process's recorder: inert where nothing is configured (see config.switched_on)."""
    global _recorder
    if _recorder is None:
        with _creation:
            if _recorder is None:
                _recorder = Recorder(folder_from(os.environ) if switched_on(os.environ) else None)
    return _recorder


def _forget() -> None:
    """A forked child is another rank: it must not write its parent's files."""
    global _recorder
    if _recorder is not None:
        _recorder.start_over()


os.register_at_fork(after_in_child=_forget)
