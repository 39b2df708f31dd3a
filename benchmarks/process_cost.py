"""What a whole process costs: CPU, wall time and peak memory, by os.wait4; and contests between processes."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Cost:
    """One run of one process.

    Attributes:
        cpu_s: user and system time of the process and of those it waited for, seconds.
        wall_s: seconds.
        peak_mb: largest resident set of one process, 10**6 bytes. A process inherits what its parent held when it was
            started, so whoever measures must be small itself and import nothing large.
    """

    cpu_s: float
    wall_s: float
    peak_mb: float


class FailedError(Exception):
    """A contender ended with an error; its last line says which."""


def run(command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> Cost:
    """Run a process to its end, with its modules compiled as an installation has them, whatever this shell says of that.

    Raises:
        FailedError: it failed.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    process = subprocess.Popen(
        [*map(str, command)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=kept | dict(environment or {}),
    )
    assert process.stderr is not None
    said = process.stderr.read()  # until it ends
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stderr.close()
    if process.returncode:
        lines = said.decode(errors="replace").strip().splitlines()
        raise FailedError(f"exit code {process.returncode}: {lines[-1][:200] if lines else 'no message'}")
    return Cost(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss * 1024 / 1e6)


@dataclass
class Contest:
    """The same work done by several contenders, one after another, round by round.

    Attributes:
        name: what is done.
        contenders: name -> command; the first is ours, the others are compared with it.
        rounds: how often.
        unit: work in one run, for rates: (amount, name), such as (100.0, "MB").
    """

    name: str
    contenders: Mapping[str, Sequence[str | Path]]
    rounds: int = 5
    unit: tuple[float, str] | None = None

    def hold(self, tell: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
        """Run all rounds; order turns from round to round.

        Returns:
            name, rounds, unit and ``contenders``: name -> medians, extremes, and ``times_ours``: the median over rounds of
            its CPU divided by ours in the same round; or ``failed``: why it has no figures.
        """
        costs: dict[str, list[Cost]] = {name: [] for name in self.contenders}
        failed: dict[str, str] = {}
        for turn in range(self.rounds):
            names = [name for name in self.contenders if name not in failed]
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                try:
                    cost = run(self.contenders[name])
                except (FailedError, OSError) as error:
                    failed[name] = str(error)
                    continue
                costs[name].append(cost)
                tell(f"  {self.name}: round {turn + 1}, {name}: {cost.cpu_s:.2f} s CPU, {cost.peak_mb:.0f} MB")
        ours = next(iter(self.contenders))
        return {
            "name": self.name,
            "rounds": self.rounds,
            "unit": self.unit,
            "contenders": {
                name: {"failed": failed[name]} if name in failed else _summary(found, costs[ours], self.unit)
                for name, found in costs.items()
            },
        }


def _summary(costs: Sequence[Cost], ours: Sequence[Cost], unit: tuple[float, str] | None) -> dict[str, Any]:
    cpu = [c.cpu_s for c in costs]
    result: dict[str, Any] = {
        "cpu_s": statistics.median(cpu),
        "cpu_s_min": min(cpu),
        "cpu_s_max": max(cpu),
        "wall_s": statistics.median(c.wall_s for c in costs),
        "peak_mb": max(c.peak_mb for c in costs),
        "runs": [asdict(c) for c in costs],
    }
    pairs = [c.cpu_s / o.cpu_s for c, o in zip(costs, ours, strict=False) if o.cpu_s > 0]
    if pairs:
        result["times_ours"] = statistics.median(pairs)
    if unit is not None:
        result["per_cpu_s"] = unit[0] / result["cpu_s"] if result["cpu_s"] else None
    return result


def table(result: Mapping[str, Any]) -> str:
    """A contest as a Markdown table."""
    unit = result["unit"]
    head = f"| {result['name']} | CPU s, median (min..max) | wall s | peak MB | CPU / ours |" + (
        f" {unit[1]} per CPU s |" if unit else ""
    )
    lines = [head, "|---|---|---|---|---|" + ("---|" if unit else "")]
    for name, found in result["contenders"].items():
        if "failed" in found:
            lines.append(f"| {name} | failed: {found['failed']} |  |  |  |" + ("  |" if unit else ""))
            continue
        line = (
            f"| {name} | {found['cpu_s']:.2f} ({found['cpu_s_min']:.2f}..{found['cpu_s_max']:.2f}) | {found['wall_s']:.2f} "
            f"| {found['peak_mb']:.0f} | {found.get('times_ours', float('nan')):.2f} |"
        )
        lines.append(line + (f" {found['per_cpu_s']:.1f} |" if unit else ""))
    return "\n".join(lines)
