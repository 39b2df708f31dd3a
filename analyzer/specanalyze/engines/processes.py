"""Ranks in processes of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from specanalyze.engines.engine import Call, Unit, here
from specanalyze.engines.jobs import sensible
from specanalyze.reading_progress import Report


class Processes:
    """See ``engine.Engine``.

    Args:
        jobs: how many workers; None for as many as repay their start (``jobs.sensible``).
        report: called with (bytes read, bytes of all files).
    """

    def __init__(self, jobs: int | None = None, report: Report | None = None) -> None:
        self.jobs = jobs
        self._report = report

    def progress(self, done: int, total: int) -> None:
        if self._report is not None:
            self._report(done, total)

    def run(self, units: Sequence[Unit], call: Call) -> Iterator[Any]:
        jobs = min(len(units), self.jobs if self.jobs is not None else sensible(units))
        if jobs < 2:
            yield from here(units, call)
            return
        from specanalyze.engines.pool import Pool

        yield from Pool(units, call, jobs).results()
