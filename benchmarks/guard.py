"""Fails when the analyzer has become slower or fatter than the committed ratios allow; takes half a minute.

    python -m benchmarks.guard [--data FOLDER] [--commit]

Only ratios are compared, each against a yardstick measured in the same rounds on the same machine, never times: the stdlib's json
on the same file, pyarrow on the same Parquet, an import of typer and rich. A ratio may grow by BAND over ``ratios.json`` before
this ends with 1; ``--commit`` writes the measured ones there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import inputs
from benchmarks.process_cost import Contest

COMMITTED: Final = Path(__file__).with_name("ratios.json")
BAND: Final = 1.6
"""How much a ratio may grow. On a machine with four times as much to do as it has cores, medians differed by 1.4; losing the
compiled scanner multiplies the third ratio by 4."""
ROUNDS: Final = 5
MEGABYTES: Final = 60
IN_PROCESS: Final = """
import json, resource, sys, time
from pathlib import Path
from specanalyze.breakdown import break_down
from specanalyze.load import open_trace
plain, packed = map(Path, sys.argv[1:])
break_down(open_trace([plain]))  # the first run loads what later ones find loaded
times = [time.process_time()]
for path in (plain, packed):
    break_down(open_trace([path]))
    times.append(time.process_time())
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
json.loads(plain.read_bytes())
times.append(time.process_time())
ours, unpacking, yardstick = (b - a for a, b in zip(times, times[1:]))
print(json.dumps([ours / yardstick, unpacking / ours, peak * 1024 / 1e6]))
"""
"""Reading and breaking down without start-up, which would hide a reader that is twice as slow."""


def measured(data: Path) -> dict[str, float]:
    """name -> ratio; smaller is better."""
    python = sys.executable
    plain, packed = (inputs.kineto(data, MEGABYTES, compressed=gz)[0] for gz in (False, True))
    table = inputs.events(data, 1, ranks=2)
    ours = [python, "-m", "specanalyze"]
    small = [*ours, "breakdown", *inputs.kineto(data, 1)]
    ratios = {
        "--help / import typer, rich": _contest([*ours, "--help"], "import typer, rich"),
        "breakdown of 1 MB / import polars, numpy": _contest(small, "import polars, numpy"),
    }
    runs = [_printed([python, "-c", IN_PROCESS, plain, packed]) for _ in range(ROUNDS)]
    reading, unpacking, peak = (statistics.median(values) for values in zip(*runs, strict=True))
    ratios[f"JSON to breakdown, {MEGABYTES} MB / json.loads"] = reading
    ratios["JSON.gz to breakdown / JSON to breakdown"] = unpacking
    ratios["peak MB / MB of JSON"] = peak / MEGABYTES
    rates = [_printed([python, "-m", "benchmarks.partition_rate", table, "5"]) for _ in range(ROUNDS)]
    ratios["Parquet to breakdown, 1 million events / reading"] = statistics.median(r["times_reading"] for r in rates)
    ratios["bytes of trace.parquet an event"] = table.stat().st_size / rates[0]["events"]
    return ratios


def _contest(command: Sequence[str | Path], yardstick: str) -> float:
    """CPU of a command over that of a piece of Python."""
    both = {"ours": command, "yardstick": [sys.executable, "-c", yardstick]}
    found = Contest("", both, ROUNDS).hold()["contenders"]
    for said in found.values():
        if "failed" in said:
            raise SystemExit(f"{command}: {said['failed']}")
    return 1 / float(found["yardstick"]["times_ours"])


def _printed(command: Sequence[str | Path]) -> Any:
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=COMMITTED.parents[1])
    return json.loads(done.stdout)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=inputs.CACHE, metavar="FOLDER")
    parser.add_argument("--commit", action="store_true", help="write what was measured")
    given = parser.parse_args()
    ratios = measured(given.data)
    if given.commit:
        COMMITTED.write_text(json.dumps({name: round(ratio, 2) for name, ratio in ratios.items()}, indent=2) + "\n")
        return
    allowed = {name: ratio * BAND for name, ratio in json.loads(COMMITTED.read_text()).items()}
    worse = [name for name, ratio in ratios.items() if ratio > allowed.get(name, float("inf"))]
    for name, ratio in ratios.items():
        limit = allowed.get(name)
        print(f"{'SLOWER' if name in worse else 'ok':6}  {ratio:7.2f}  allowed {limit or float('nan'):7.2f}  {name}")
    if worse:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
