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
from pathlib import Path
from typing import Final

from benchmarks import inputs
from benchmarks.process_cost import Contest

COMMITTED: Final = Path(__file__).with_name("ratios.json")
BAND: Final = 1.4
"""How much a ratio may grow: on a busy machine two medians of five differ by up to a quarter; a third means a change."""
ROUNDS: Final = 5
MEGABYTES: Final = 10
JSON_YARDSTICK: Final = "import json, sys; json.load(open(sys.argv[1]))"


def measured(data: Path) -> dict[str, float]:
    """name -> ratio; smaller is better."""
    python = sys.executable
    trace = inputs.kineto(data, MEGABYTES)[0]
    packed = inputs.kineto(data, MEGABYTES, compressed=True)[0]
    table = inputs.events(data, 1, ranks=2)
    ours = [python, "-m", "specanalyze"]
    contests = {
        "breakdown of 10 MB of JSON / json.load": [[*ours, "breakdown", trace], [python, "-c", JSON_YARDSTICK, trace]],
        "breakdown of 10 MB of JSON.gz / of JSON": [[*ours, "breakdown", packed], [*ours, "breakdown", trace]],
        "--help / import typer, rich": [
            [*ours, "--help"],
            [python, "-c", "import typer, rich.console, rich.table"],
        ],
    }
    ratios = {}
    peak = 0.0
    for name, (command, yardstick) in contests.items():
        found = Contest(name, {"ours": command, "yardstick": yardstick}, ROUNDS).hold()["contenders"]
        failed = [said["failed"] for said in found.values() if "failed" in said]
        if failed:
            raise SystemExit(f"{name}: {failed[0]}")
        ratios[name] = 1 / found["yardstick"]["times_ours"]
        peak = max(peak, found["ours"]["peak_mb"])
    ratios["peak MB of breakdown / MB of JSON"] = peak / MEGABYTES
    rates = [
        json.loads(
            subprocess.run(
                [python, "-m", "benchmarks.partition_rate", table],
                check=True,
                capture_output=True,
                cwd=COMMITTED.parents[1],
            ).stdout
        )
        for _ in range(ROUNDS)
    ]
    ratios["exact partition of 1 million events / reading them"] = statistics.median(r["times_reading"] for r in rates)
    ratios["bytes of trace.parquet an event"] = table.stat().st_size / rates[0]["events"]
    return ratios


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
