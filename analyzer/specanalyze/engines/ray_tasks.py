"""Ranks as tasks of a Ray cluster: an existing one (RAY_ADDRESS), or one that lives as long as this command.

Every node needs this package in this version and sees the files under the same names: a shared folder, or an object store.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import version
from typing import Any, Final, NamedTuple

from specanalyze.engines.engine import Call, Unit, WorkerError
from specanalyze.engines.shipment import Outcome, Shipment, perform
from specanalyze.reading_progress import Report, in_worker
from specanalyze.trace import Trace
from specschema.errors import TraceError, UsageError
from specschema.install_line import missing

ADDRESS: Final = "RAY_ADDRESS"
RETRIES: Final = 3
"""How often a rank is begun again when its worker or node is lost."""
_REACH_S: Final = 10.0
_HOST_PORT: Final = re.compile(r"[^/]+:\d+")
"""``auto`` and ``ray://...`` are Ray's own to find."""
_SILENT: Final = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""Nothing is reported to Ray's makers, and its warning about a variable that a later release changes is no concern of a user."""


class Finished(NamedTuple):
    """What a task sends back."""

    outcome: Outcome
    read: int
    total: int
    version: str


class RayTasks:
    """See ``engine.Engine``.

    Args:
        report: called with (bytes read, bytes of all files), when a rank is done.
    """

    def __init__(self, report: Report | None = None) -> None:
        self._report = report

    def progress(self, done: int, total: int) -> None:
        if self._report is not None:
            self._report(done, total)

    def run(self, units: Sequence[Unit], call: Call) -> Iterator[Any]:
        """See ``engine.Engine``.

        Raises:
            UsageError: Ray is not installed, told now that every recording of the command line has been looked at; or no cluster.
        """
        try:
            import ray
        except ModuleNotFoundError as error:
            line = missing(error, "cluster")
            if line is None:
                raise
            raise UsageError(f"--engine ray: {line}") from None
        _connect()
        task = ray.remote(num_cpus=1, max_retries=RETRIES)(work)
        shipments: dict[int, tuple[str, Any]] = {}
        for unit in units:
            if id(unit.trace) not in shipments:
                shipment = Shipment.of(unit.trace)
                shipments[id(unit.trace)] = shipment.name, ray.put(shipment.content)
        here = os.getcwd()
        numbers = {task.remote(*shipments[id(u.trace)], u.place, call, here): n for n, u in enumerate(units)}
        pending = list(numbers)
        done: dict[int, Finished] = {}
        read = dict.fromkeys(shipments, 0)
        try:
            for number, unit in enumerate(units):
                while number not in done:
                    (ready, *_), pending = ray.wait(pending, num_returns=1)
                    which = numbers[ready]
                    done[which] = _got(ready, units[which])
                    self._tell(units[which].trace, done[which], read)
                finished = done.pop(number)
                if number + 1 == len(units) or units[number + 1].trace is not unit.trace:
                    self._tell_end(unit.trace, finished.total)
                yield finished.outcome.get(unit.trace)
        finally:
            if ray.is_initialized():  # no more when the interpreter ends; a call would connect again
                for ref in pending:
                    ray.cancel(ref, force=True)

    def _tell(self, trace: Trace, report: Finished, read: dict[int, int]) -> None:
        """Ranks may share a file, so the whole is only told at the end."""
        read[id(trace)] += report.read
        if trace.engine is not None and report.total:
            trace.engine.progress(min(read[id(trace)], report.total - 1), report.total)

    @staticmethod
    def _tell_end(trace: Trace, total: int) -> None:
        if trace.engine is not None and total:
            trace.engine.progress(total, total)


def work(name: str, content: bytes, place: int, call: Call, folder: str) -> Finished:
    """One rank of a recording that has arrived in this worker of the cluster."""
    os.environ.setdefault("POLARS_MAX_THREADS", "1")  # Ray gives the task one core
    if os.path.isdir(folder):
        os.chdir(folder)  # paths are those of the command line
    trace, counted = _arrived(name, content)
    before = counted.read
    try:
        outcome = perform(trace, place, call)
    except FileNotFoundError as error:
        outcome = Outcome(
            error=TraceError(
                f"{error.filename} is not there on Ray's node {socket.gethostname()}: every node must see the recording under the same "
                "name, in a shared folder or an object store"
            )
        )
    return Finished(outcome, counted.read - before, counted.total, version("specanalyze"))


class _Counted:
    """Bytes that this worker has read of one recording."""

    def __init__(self) -> None:
        self.read = self.total = 0

    def __call__(self, done: int, total: int) -> None:
        self.read, self.total = done, total


_last: dict[str, tuple[Trace, _Counted]] = {}


def _arrived(name: str, content: bytes) -> tuple[Trace, _Counted]:
    """The recording, unpacked once in a worker that does several of its ranks."""
    if name not in _last:
        _last.clear()
        _last[name] = Shipment(name, content).unpacked(), _Counted()
    trace, counted = _last[name]
    in_worker(counted)
    return trace, counted


def _got(ref: Any, unit: Unit) -> Finished:
    """A finished task's result.

    Raises:
        WorkerError: its worker was lost too often, or can't import this package.
        UsageError: another version of this package.
    """
    import ray

    try:
        report: Finished = ray.get(ref)
    except ray.exceptions.RayTaskError:
        raise  # a bug: with the traceback of the task
    except ray.exceptions.RayError as error:
        said = str(error).strip().splitlines()[0]
        raise WorkerError(
            f"{unit.trace.name}: rank {unit.source.key} was not finished on the Ray cluster in {RETRIES + 1} tries: {said}"
        ) from None
    if report.version != version("specanalyze"):
        raise UsageError(
            f"the Ray cluster has specanalyze {report.version}, this is {version('specanalyze')}: install the same on every node"
        )
    return report


def _reach(address: str) -> None:
    """Ray ends the whole process where nobody listens.

    Raises:
        UsageError: nobody does.
    """
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()
    except (OSError, OverflowError) as error:
        raise UsageError(f"no Ray cluster at {address} ({ADDRESS}): {error}") from None


@cache
def _connect() -> None:
    """Join the cluster that RAY_ADDRESS names, else start one on this machine.

    Raises:
        UsageError: no cluster there.
    """
    import ray

    os.environ.update({name: os.environ.get(name, value) for name, value in _SILENT.items()})
    if ray.is_initialized():
        return
    address = os.environ.get(ADDRESS)
    if address and _HOST_PORT.fullmatch(address):
        _reach(address)
    quiet: dict[str, Any] = {"logging_level": "error", "log_to_driver": False}
    try:
        if address:
            ray.init(address=address, **quiet)
        else:
            # The loopback address: nothing of a cluster that only this command uses is reachable from elsewhere.
            ray.init(address="local", include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
    except (ConnectionError, ray.exceptions.RaySystemError, RuntimeError, ValueError) as error:
        said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UsageError(f"no Ray cluster at {address or 'this machine'} ({ADDRESS}): {said}") from None
    # Ray prints the death of a worker to stdout, where a table or JSON document goes, and has no public switch for it. Whether it
    # matters is known when the retries are over.
    ray._private.worker._worker_logs_enabled = False
