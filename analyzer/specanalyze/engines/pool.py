"""Worker processes of one run: each has one rank at a time, so memory is bounded by their number."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, Final

from specanalyze.engines import worker
from specanalyze.engines.engine import Call, Unit, WorkerError
from specanalyze.engines.jobs import cores
from specanalyze.engines.shipment import Outcome, Shipment
from specanalyze.trace import Trace

_THREADS: Final = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Libraries that would start a thread for every core in every worker."""


@dataclass
class _Worker:
    """One process, and what it is doing."""

    process: subprocess.Popen[bytes]
    link: Connection
    has: str = ""
    unit: int | None = None
    read: dict[int, int] = field(default_factory=dict)


class Pool:
    """Workers for one run."""

    def __init__(self, units: Sequence[Unit], call: Call, jobs: int) -> None:
        self._units = units
        self._call = call
        self._jobs = jobs
        self._shipments: dict[int, Shipment] = {}
        self._workers: list[_Worker] = []
        self._outcomes: dict[int, Outcome] = {}
        self._totals: dict[int, int] = {}
        self._next = 0

    def results(self) -> Iterator[Any]:
        try:
            for _ in range(self._jobs):
                self._workers.append(_start(self._jobs))
                self._hand_out(self._workers[-1])
            for number, unit in enumerate(self._units):
                while number not in self._outcomes:
                    self._listen()
                if number + 1 == len(self._units) or self._units[number + 1].trace is not unit.trace:
                    self._tell_end(unit.trace)
                yield self._outcomes.pop(number).get(unit.trace)
        finally:
            self._end()

    def _hand_out(self, to: _Worker) -> None:
        to.unit = None
        if self._next >= len(self._units):
            return
        to.unit, self._next = self._next, self._next + 1
        unit = self._units[to.unit]
        with contextlib.suppress(OSError):  # it is gone; its end of the link says so
            if to.has != (shipment := self._shipment(unit.trace)).name:
                to.link.send(shipment)
                to.has = shipment.name
            to.link.send((unit.place, self._call))

    def _shipment(self, trace: Trace) -> Shipment:
        if id(trace) not in self._shipments:
            self._shipments = {id(trace): Shipment.of(trace)}  # units come recording by recording
        return self._shipments[id(trace)]

    def _listen(self) -> None:
        """Take what the workers have to say now."""
        heard = wait([w.link for w in self._workers])
        for at_work in [w for w in self._workers if w.link in heard]:
            try:
                kind, *said = at_work.link.recv()
            except (EOFError, ConnectionError):
                if at_work.unit is not None or len(self._workers) == 1:
                    raise self._died(at_work) from None
                self._workers.remove(at_work)  # it said why, and was given nothing more
                at_work.process.wait()
                at_work.link.close()
                continue
            assert at_work.unit is not None
            if kind == "read":
                self._tell(at_work, *said)
                continue
            (outcome,) = said
            self._outcomes[at_work.unit] = outcome
            if outcome.error is not None:
                # What comes before it in order may still fail first; nothing after it starts.
                self._next = len(self._units)
            self._hand_out(at_work)

    def _tell(self, by: _Worker, done: int, total: int) -> None:
        """Each worker counts what it has read itself; a file that several ranks share counts more than once, so the whole is
        only told at the end."""
        assert by.unit is not None
        trace = self._units[by.unit].trace
        by.read[id(trace)] = done
        self._totals[id(trace)] = total
        if trace.engine is not None:
            trace.engine.progress(min(sum(w.read.get(id(trace), 0) for w in self._workers), total - 1), total)

    def _tell_end(self, trace: Trace) -> None:
        total = self._totals.get(id(trace))
        if total is not None and trace.engine is not None:
            trace.engine.progress(total, total)

    def _died(self, worker: _Worker) -> WorkerError:
        code = worker.process.wait()
        unit = None if worker.unit is None else self._units[worker.unit]
        what = (
            "a worker process" if unit is None else f"{unit.trace.name}: the process that read rank {unit.source.key}"
        )
        if code == -signal.SIGKILL:
            return WorkerError(f"{what} was killed (SIGKILL): out of memory? Fewer --jobs than {self._jobs} need less")
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return WorkerError(f"{what} {how}; --jobs 1 reads the ranks in one process")

    def _end(self) -> None:
        for w in self._workers:
            w.process.kill()  # it holds nothing that has to be put away
            w.link.close()
        for w in self._workers:
            w.process.wait()


def _start(jobs: int) -> _Worker:
    """Start a process that Ctrl-C does not reach: who started it is told, and ends it."""
    ours, theirs = worker.pair()
    threads = str(max(1, cores() // jobs))
    environment = {**os.environ, **{name: os.environ.get(name, threads) for name in _THREADS}}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process = subprocess.Popen(
            worker.command(theirs.fileno(), jobs),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
    return _Worker(process, ours)
