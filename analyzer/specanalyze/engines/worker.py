"""A process of ``processes.Processes``: takes ranks from a socket, one at a time, and sends back what they come to."""

from __future__ import annotations

import gc
import os
import pickle
import socket
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, NoReturn

from specschema.errors import TraceError

_BETWEEN_REPORTS_S: Final = 0.05


def command(fd: int, workers: int) -> list[str]:
    """How to start one of so many that speaks over a socket of this number; it finds modules where this process does."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from specanalyze.engines.worker import main; main({fd}, {workers})"
    return [sys.executable, "-c", code]


def main(fd: int, workers: int) -> NoReturn:
    """Work until the other end closes the socket. What is no fault of the data ends the process with its traceback.

    Takes its share of the memory that a command may; what needs more is told like any fault of the data.
    """
    link = Connection(fd)
    orders: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_listen, args=(link, orders), daemon=True).start()

    from specanalyze import memory
    from specanalyze.engines.shipment import Outcome, Shipment, perform
    from specanalyze.reading_progress import in_worker

    said = 0.0

    def report(done: int, total: int) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said >= _BETWEEN_REPORTS_S or done >= total:
            said = now
            link.send(("read", done, total))

    def over_memory(line: str) -> None:
        link.send_bytes(pickle.dumps(("done", Outcome(error=TraceError(line)))))

    in_worker(report)
    trace = None
    while True:
        order = orders.get()
        if isinstance(order, Shipment):
            trace = order.unpacked()
            gc.collect()
            gc.freeze()  # a footer of a thousand ranks stays; it need not be looked through again and again
            continue
        assert trace is not None
        memory.watch(Path(trace.sources[order[0]].source).name, over_memory, processes=workers)
        link.send_bytes(pickle.dumps(("done", perform(trace, *order)), protocol=pickle.HIGHEST_PROTOCOL))


def _listen(link: Connection, orders: SimpleQueue[Any]) -> None:
    """Hear at once that nobody waits any more, also in the middle of a rank."""
    try:
        while True:
            orders.put(link.recv())
    except (EOFError, OSError):
        os._exit(0)


def pair() -> tuple[Connection, socket.socket]:
    """Our end, and the worker's end to hand over."""
    ours, theirs = socket.socketpair()
    return Connection(ours.detach()), theirs
