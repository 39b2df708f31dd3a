"""Functions of one rank that misbehave, for tests of the engines; another process finds them by this module's name."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from specanalyze.attribution.rank_result import RankResult, rank_result
from specanalyze.trace import RankSource, Trace
from specschema.errors import TraceError


def key_and_pid(source: RankSource, trace: Trace) -> tuple[str, str, int]:
    """The rank's key, its recording and the process, after long enough for another worker to take the next rank."""
    time.sleep(0.05)
    return source.key, trace.name, os.getpid()


def killed_at(source: RankSource, trace: Trace, key: str) -> str:
    """Its process is killed at one rank, as by a machine out of memory."""
    source.read()
    if source.key == key:
        os.kill(os.getpid(), signal.SIGKILL)
    return source.key


def complains_at(source: RankSource, trace: Trace, keys: tuple[str, ...]) -> str:
    """Refuses some ranks; the earlier, the later."""
    trace.warnings.append(f"rank {source.key} was looked at")
    if source.key in keys:
        time.sleep(0.5 / (1 + int(source.key)))
        raise TraceError(f"rank {source.key} is damaged")
    return source.key


def divides_by_zero(source: RankSource, trace: Trace) -> float:
    """A bug."""
    return 1 / 0


def sleeps(source: RankSource, trace: Trace, *given: object, folder: str = "", **options: object) -> None:
    """Says that it has begun, and goes on for a minute."""
    told = folder or os.environ["RANK_FUNCTIONS_FOLDER"]
    Path(told, f"begun-{source.key}-{os.getpid()}").touch()
    time.sleep(60)


def killed_once(source: RankSource, trace: Trace, folder: str) -> RankResult:
    """The first process that has read the last rank is killed before it has a result."""
    result = rank_result(source, trace)
    mark = Path(folder, "killed")
    if source is trace.sources[-1] and not mark.exists():
        mark.write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    return result
