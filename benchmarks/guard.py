"""Fails when the analyzer has become slower or fatter than the committed ratios allow; takes half a minute.

    python -m benchmarks.guard [--data FOLDER] [--only MEASURE] [--ratios FILE] [--commit]

Only ratios are compared, each against a yardstick measured in the same rounds on the same machine, never times: the stdlib's json
on the same file, pyarrow on the same Parquet, an import of typer and rich. A ratio that has grown by more than BAND over
``ratios.json`` is measured once more, and this ends with 1 when that agrees; ``--commit`` writes the measured ones there. That
it can fail shows ``SPECANALYZE_NATIVE=0 python -m benchmarks.guard --only json``, which measures without the compiled passes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
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
from specanalyze.answers.breakdown import break_down
from specanalyze.formats.load import open_trace
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


Ratios = dict[str, float]


def starts(data: Path) -> Ratios:
    """What a command costs before it does anything; smaller is better, as everywhere here."""
    ours = [sys.executable, "-m", "specanalyze"]
    small = [*ours, "breakdown", *inputs.kineto(data, 1)]
    return {
        "--help / import typer, rich": _contest([*ours, "--help"], "import typer, rich.console, rich.table"),
        "breakdown of 1 MB / import polars, numpy": _contest(small, "import polars, numpy"),
    }


def json_text(data: Path) -> Ratios:
    """Reading and breaking down profiler JSON."""
    plain, packed = (inputs.kineto(data, MEGABYTES, compressed=gz)[0] for gz in (False, True))
    runs = [_printed([sys.executable, "-c", IN_PROCESS, plain, packed]) for _ in range(ROUNDS)]
    reading, unpacking, peak = (statistics.median(values) for values in zip(*runs, strict=True))
    return {
        f"JSON to breakdown, {MEGABYTES} MB / json.loads": reading,
        "JSON.gz to breakdown / JSON to breakdown": unpacking,
        "peak MB / MB of JSON": peak / MEGABYTES,
    }


def parquet(data: Path) -> Ratios:
    """Reading and breaking down trace.parquet."""
    table, mapped = (inputs.events(data, 1, ranks=2, node_map=name) for name in (None, "order"))
    rates: list[Any] = []
    with_map: list[Any] = []
    for _ in range(ROUNDS):
        for path, runs in ((table, rates), (mapped, with_map)):
            runs.append(_printed([sys.executable, "-m", "benchmarks.partition_rate", path, "5"]))
    more = [b["breakdown_cpu_s"] / a["breakdown_cpu_s"] for a, b in zip(rates, with_map, strict=True)]
    return {
        "Parquet to breakdown, 1 million events / reading": statistics.median(r["times_reading"] for r in rates),
        "Parquet to breakdown with a node map / without": statistics.median(more),
        "bytes of trace.parquet an event": table.stat().st_size / rates[0]["events"],
    }


MEASURES: Final[dict[str, Callable[[Path], Ratios]]] = {"starts": starts, "json": json_text, "parquet": parquet}


def worse(ratios: Ratios, committed: Ratios) -> list[str]:
    """Those that have grown out of the band; one that was never committed can't."""
    return [name for name, ratio in ratios.items() if ratio > committed.get(name, float("inf")) * BAND]


def judged(measures: Sequence[Callable[[Path], Ratios]], data: Path, committed: Ratios) -> Ratios:
    """All ratios; where one is worse, that measure is repeated and the better of two counts.

    A machine that stalls for a moment stalls one measurement; code that became slower slows both.
    """
    ratios: Ratios = {}
    for measure in measures:
        found = measure(data)
        if worse(found, committed):
            again = measure(data)
            found = {name: min(ratio, again[name]) for name, ratio in found.items()}
        ratios |= found
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
    parser.add_argument("--only", choices=MEASURES, help="a part of it")
    parser.add_argument("--ratios", type=Path, default=COMMITTED, metavar="FILE", help="compare with these")
    given = parser.parse_args()
    committed = {} if given.commit else json.loads(given.ratios.read_text())
    measures = [MEASURES[given.only]] if given.only else list(MEASURES.values())
    ratios = judged(measures, given.data, committed)
    if given.commit:
        kept = json.loads(given.ratios.read_text()) | {name: round(ratio, 2) for name, ratio in ratios.items()}
        given.ratios.write_text(json.dumps(kept, indent=2) + "\n")
        return
    slower = worse(ratios, committed)
    for name, ratio in ratios.items():
        allowed = f"{committed[name] * BAND:7.2f}" if name in committed else "   none"
        print(f"{'SLOWER' if name in slower else 'ok':6}  {ratio:7.2f}  allowed {allowed}  {name}")
    if slower:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
