"""The recorder that an engine's hooks call: one per process, inert until armed, and it never raises into the server."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from speccollect.config import folder_from, switched_on
from speccollect.control.word import Command
from speccollect.nodemap.rows import graph_table
from speccollect.rank.arming import LOOK_AROUND, Arming
from speccollect.rank.arming import NodeRows as NodeRows

logger = logging.getLogger("speccollect")

MAX_NODES = 2_000_000
"""Nodes of all captured graphs together; further graphs are not kept, and the log says so."""


class Recorder(Arming):
    """What hooks call. Every method returns normally whatever happens; a failure disarms and is logged once.

    Attributes:
        armed: the one attribute a hook has to look at: while False, nothing but ``poll`` needs to be called.
        stamps: where hooks that write their stamps themselves (``speccollect.hooks.stamps``) put those of the open cycle.
        watched: whether its phases are ranges for somebody, too: ``enter_range`` and ``leave_range`` are to be called.
    """

    stamps: list[int]
    watched = False

    def _arm(self, command: Command) -> None:
        super()._arm(command)
        recording = self._recording
        if recording is not None:  # also what comes before the first cycle is stamped
            self.stamps, self.watched = recording.stamps, recording.ranges

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
            recording, reader = self._recording, self._reader
            if (
                recording is None
                or reader is None
                or reader.word() != self._word
                or self._polls & LOOK_AROUND == LOOK_AROUND
                or self._orphan is not None
            ):
                self.poll()
                recording = self._recording
                if recording is None:
                    return -1
            else:
                self._polls += 1  # what poll would have done, without its frame
            if threading.get_ident() != recording.thread:
                recording.lost.other_thread += 1
                return -1
            number = recording.begin_cycle(mode, batch_size, draft_tokens, request_ids, context_tokens)
            self.stamps, self.watched = recording.stamps, recording.ranges
            return number
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

    def enter_range(self, name: str) -> None:
        """The range of a phase whose stamps the hook writes itself."""
        recording = self._recording
        if recording is None:
            return
        try:
            if recording.ranges:
                recording.enter(name)
        except Exception as error:  # noqa: BLE001  fail open
            self.fail("enter_range", error)

    def leave_range(self) -> None:
        """The innermost range ends."""
        recording = self._recording
        if recording is None:
            return
        try:
            recording.leave()
        except Exception as error:  # noqa: BLE001  fail open
            self.fail("leave_range", error)

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
            self._nodes[graph_id] = graph_table(graph_id, rows)
            self._node_count += count
        except Exception as error:  # noqa: BLE001  fail open
            self.fail("note_graph", error)


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
