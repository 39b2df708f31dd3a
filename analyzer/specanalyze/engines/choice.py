"""Which engine a command line asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from specanalyze.engines.engine import Engine
from specanalyze.reading_progress import Report
from specanalyze.trace import Trace
from specschema.errors import UsageError

ENGINES: Final = ("local", "ray")


def with_engine(trace: Trace, name: str = "local", jobs: int | None = None, report: Report | None = None) -> Trace:
    """The same recording, its ranks worked on by the engine of this name.

    Args:
        trace: an opened recording.
        name: ``local`` (this machine) or ``ray``.
        jobs: workers of the local engine, 1 for this process alone, None for as many as repay their start.
        report: progress, as given to ``load.open_trace``.

    Raises:
        UsageError: no such engine, or a number below 1.
    """
    if name not in ENGINES:
        raise UsageError(f"--engine {name}: use {' or '.join(ENGINES)}")
    if jobs is not None and jobs < 1:
        raise UsageError(f"--jobs {jobs}: give the number of processes, 1 or more")
    engine: Engine
    if name == "ray":
        from specanalyze.engines.ray_tasks import RayTasks

        if jobs is not None:
            raise UsageError("--jobs is for --engine local; a Ray cluster runs as many ranks at once as it has cores")
        engine = RayTasks(report)
    else:
        from specanalyze.engines.processes import Processes

        engine = Processes(jobs, report)
    return replace(trace, engine=engine)
