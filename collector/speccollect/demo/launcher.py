"""Starts one process a rank, waits for them, and never leaves one behind."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import IO, Final

from speccollect.demo.parallel import open_store
from speccollect.demo.rank import RankResult, RankTask

logger: Final = logging.getLogger("speccollect")

_POLL_SECONDS: Final = 0.02
_EXIT_SECONDS: Final = 30.0
"""How long a rank may take to close its files and leave."""


class Ranks:
    """The running rank processes and the store through which they talk with the launcher."""

    def __init__(self, task: RankTask, environment: Mapping[str, str]) -> None:
        self.size = task.config.tp
        self.store = open_store()
        self.processes: list[subprocess.Popen[str]] = []
        self.errors: list[IO[bytes]] = []
        for rank in range(self.size):
            # A file, not a pipe: nobody reads along, and a full pipe would stop the rank.
            error = tempfile.TemporaryFile(prefix=f"rank{rank}-")  # noqa: SIM115  closed in close()
            self.errors.append(error)
            process = subprocess.Popen(
                [sys.executable, "-m", "speccollect.demo.rank"],
                stdin=subprocess.PIPE,
                stdout=error,
                stderr=error,
                text=True,
                env=_environment(environment, rank, self.size),
            )
            self.processes.append(process)
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it died at once: wait_for says why
                # The pipe stays open: the rank ends when it closes, however this process ends.
                process.stdin.write(replace(task, rank=rank, port=self.store.port).encode() + "\n")
                process.stdin.flush()

    def wait_for(self, key: str) -> None:
        """Wait until every rank has set ``key``/RANK in the store.

        Raises:
            RuntimeError: a rank ended before; with the end of what it wrote.
        """
        keys = [f"{key}/{rank}" for rank in range(self.size)]
        while not self.store.check(keys):
            for rank, process in enumerate(self.processes):
                if process.poll() is not None and not self.store.check([keys[rank]]):
                    raise RuntimeError(
                        f"rank {rank} of the embedded engine ended with status {process.returncode} before it was {key}:\n"
                        + self._said(rank)
                    )
            time.sleep(_POLL_SECONDS)

    def results(self) -> list[list[RankResult]]:
        """What each rank reported of each way, once all have."""
        self.wait_for("result")
        texts = [self.store.get(f"result/{rank}") for rank in range(self.size)]
        return [[RankResult(**way) for way in json.loads(text)] for text in texts]

    def leave(self) -> None:
        """Let the ranks close their files and end.

        Raises:
            RuntimeError: a rank did not end well.
        """
        self.store.set("over", "")
        deadline = time.monotonic() + _EXIT_SECONDS
        for rank, process in enumerate(self.processes):
            try:
                status = process.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                # Its results are in and its files are closed; only a library's clean-up hangs.
                logger.warning("rank %d of the embedded engine did not end by itself and was killed", rank)
                continue
            if status != 0:
                raise RuntimeError(
                    f"rank {rank} of the embedded engine ended with status {status}:\n{self._said(rank)}"
                )

    def close(self) -> None:
        """End what still runs."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
        for error in self.errors:
            error.close()

    def _said(self, rank: int) -> str:
        # pread: the rank shares the file's position, a seek would move where it writes.
        descriptor = self.errors[rank].fileno()
        size = os.fstat(descriptor).st_size
        return os.pread(descriptor, 4000, max(0, size - 4000)).decode(errors="replace")


def _environment(extra: Mapping[str, str], rank: int, size: int) -> dict[str, str]:
    environment = dict(os.environ)
    # One thread a rank: ranks share the cores, and a test machine has two.
    environment.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), OMP_NUM_THREADS="1")
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    if sys.platform == "linux":
        # All ranks are on this host; the host's own name may resolve to an address that nothing listens on.
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # Kineto reads it when it starts: without it launches stay dear after the first window.
    environment.setdefault("TEARDOWN_CUPTI", "1")
    environment.update(extra)
    return environment


@contextlib.contextmanager
def started(task: RankTask, environment: Mapping[str, str]) -> Iterator[Ranks]:
    """The ranks of one run; whatever happens inside the block, none is left running."""
    ranks = Ranks(task, environment)
    try:
        yield ranks
    finally:
        ranks.close()


def run_ranks(
    task: RankTask, environment: Mapping[str, str], *, before: Callable[[], None], after: Callable[[], None]
) -> list[list[RankResult]]:
    """Run a task on all its ranks.

    Args:
        task: its rank and port are filled in here.
        environment: variables for the ranks, beside this process's own.
        before: called when every rank is warm and none serves yet.
        after: called when every rank has served.

    Returns:
        For each rank, one result a way.

    Raises:
        RuntimeError: a rank failed.
    """
    with started(task, environment) as ranks:
        ranks.wait_for("ready")
        before()
        ranks.store.set("go", "")
        results = ranks.results()
        after()
        ranks.leave()
        return results


def agreed(results: list[list[RankResult]]) -> list[RankResult]:
    """Rank 0's results, after the others' tokens were held against them.

    Raises:
        RuntimeError: a rank chose other tokens.
    """
    for rank, mine in enumerate(results):
        if [way.completions for way in mine] != [way.completions for way in results[0]]:
            raise RuntimeError(f"rank {rank} of the embedded engine chose other tokens than rank 0")
    return results[0]
