"""How far reading is, told across processes: what a reader calls here becomes, in a worker, a message to whoever started it."""

from __future__ import annotations

from collections.abc import Callable

Report = Callable[[int, int], None]
"""Called with (bytes read, bytes of all files)."""


class Reading:
    """A report that may travel inside a pickled recording; where it arrives it tells ``in_worker`` instead."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def __call__(self, done: int, total: int) -> None:
        self._report(done, total)

    def __reduce__(self) -> tuple[Callable[[], Reading], tuple[()]]:
        return _arrived, ()


_reports: list[Report] = []


def in_worker(report: Report) -> None:
    """What recordings that arrive in this process from now on tell, instead of what they told where they were opened."""
    _reports[:] = [report]


def _arrived() -> Reading:
    return Reading(_tell)


def _tell(done: int, total: int) -> None:
    for report in _reports:
        report(done, total)
