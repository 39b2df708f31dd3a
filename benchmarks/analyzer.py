"""Times the analyzer against its peers, whole processes, on the same files in the same run.

    python -m benchmarks.analyzer [--quick] [--json FILE] [--only WORD] [--data FOLDER] [--peers FOLDER] [--rounds 5]

Contenders take turns; a ratio is the median over rounds of their CPU in one round, so that a machine that is busy for a while
is busy for all. ``--quick`` takes two minutes: small files, no 1 GB, no 8 ranks. Inputs are generated once (about 2 GB for
everything) in ``--data``; peers live in an environment of their own, made by ``python -m benchmarks.install_peers``.

This process imports nothing large, because a child's peak memory counts from its parent's.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import inputs
from benchmarks.process_cost import Contest, table

HERE = Path(__file__).parent
PYTHON = Path(sys.executable)
OURS = "specanalyze"
_NODE_MAPS = {None: "", "order": ", node map", "ids": ", node map and ids"}
PEERS = {"HolisticTraceAnalysis": "hta", "TraceLens": "TraceLens"}
"""Peer -> its package."""


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two minutes: small inputs, three rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    parser.add_argument("--only", metavar="WORD", help="contests whose name holds the word")
    parser.add_argument("--data", type=Path, default=inputs.CACHE, metavar="FOLDER")
    parser.add_argument("--peers", type=Path, default=inputs.CACHE / "peers", metavar="FOLDER")
    parser.add_argument("--peer", choices=list(PEERS), help="against this one alone")
    parser.add_argument("--rounds", type=int, help="5, or 3 with --quick")
    parser.add_argument(
        "--four-gigabytes", action="store_true", help="also 1 GB of JSON.gz and 4 GB of JSON, for memory"
    )
    parser.add_argument("--hundred-million", action="store_true", help="also 100 million events of Parquet (500 MB)")
    given = parser.parse_args()
    rounds = given.rounds or (3 if given.quick else 5)
    peers = {name: python for name, python in _peers(given.peers).items() if given.peer in (None, name)}

    results = []
    for name, contest in _contests(given, peers, rounds):
        if given.only and given.only not in name:
            continue
        result = contest().hold(lambda line: print(line, file=sys.stderr, flush=True))
        print(f"\n{table(result)}", flush=True)
        results.append(result)
    rates = [] if given.only and given.only not in "partition" else _rates(given, rounds)
    if rates:
        print("\n" + _rate_table(rates), flush=True)
    if given.json:
        document = {"machine": _machine(), "contests": results, "partition": rates}
        given.json.write_text(json.dumps(document, indent=1) + "\n")


def _contests(given: Any, peers: dict[str, Path], rounds: int) -> Iterator[tuple[str, Callable[[], Contest]]]:
    """Each contest's name, and how to make it (its input may have to be generated first)."""

    def against_peers(name: str, files: Callable[[], list[Path]], size: float, turns: int) -> Callable[[], Contest]:
        def make() -> Contest:
            paths = files()
            contenders: dict[str, Sequence[str | Path]] = {OURS: [*_ours("breakdown"), *paths]}
            for peer, python in peers.items():
                contenders[peer] = [python, HERE / "peers" / f"{_script(peer)}.py", *paths]
            return Contest(name, contenders, turns, (size, "MB"))

        return make

    def alone(name: str, files: Callable[[], list[Path]], size: float) -> Callable[[], Contest]:
        return lambda: Contest(name, {OURS: [*_ours("breakdown"), *files()]}, rounds, (size, "MB"))

    yield (
        "start-up: --help",
        lambda: Contest(
            "start-up: --help",
            {OURS: _ours("--help"), "import typer, rich": _python("import typer, rich")},
            2 * rounds,
        ),
    )
    yield (
        "start-up: small trace",
        lambda: Contest(
            "start-up: small trace",
            {
                "specanalyze breakdown": [*_ours("breakdown"), *inputs.kineto(given.data, 1)],
                "import polars, numpy": _python("import polars, numpy"),
            },
            2 * rounds,
        ),
    )
    small = 10 if given.quick else 100
    one = f"{small} MB, 1 rank, JSON -> breakdown"
    yield one, against_peers(one, lambda: inputs.kineto(given.data, small), small, rounds)
    packed = f"{small} MB, 1 rank, JSON.gz -> breakdown"
    yield packed, alone(packed, lambda: inputs.kineto(given.data, small, compressed=True), small)
    imported = f"{small} MB, 1 rank, JSON -> trace.parquet"
    yield (
        imported,
        lambda: Contest(
            imported,
            {
                OURS: [
                    *_ours("import"),
                    *inputs.kineto(given.data, small),
                    "--force",
                    "-o",
                    given.data / "imported.parquet",
                ]
            },
            rounds,
            (small, "MB"),
        ),
    )
    if given.quick:
        return
    for ranks in (1, 2, 4, 8):
        name = f"{ranks} ranks of 100 MB, JSON -> breakdown"
        files = lambda ranks=ranks: inputs.kineto(given.data, 100, ranks=8)[:ranks]  # noqa: E731
        yield name, against_peers(name, files, 100 * ranks, rounds) if ranks == 8 else alone(name, files, 100 * ranks)
    big = "1 GB, 1 rank, JSON -> breakdown"
    yield big, against_peers(big, lambda: inputs.kineto(given.data, 1000), 1000, rounds)
    if given.four_gigabytes:
        packed = "1 GB, 1 rank, JSON.gz -> breakdown"
        yield packed, alone(packed, lambda: inputs.kineto(given.data, 1000, compressed=True), 1000)
        four = "4 GB, 1 rank, JSON -> breakdown"
        yield four, alone(four, lambda: inputs.kineto(given.data, 4000), 4000)


def _rates(given: Any, rounds: int) -> list[dict[str, Any]]:
    """Parquet to exact partition, in processes of their own that leave their imports out; those of one size take turns."""
    sizes = [(1, 2)] if given.quick else [(1, 2), (10, 8)]
    if given.hundred_million:
        sizes.append((100, 8))
    results = []
    for million, ranks in sizes:
        paths = {
            name: inputs.events(given.data, million, ranks=ranks, node_map=name) for name in (None, "order", "ids")
        }
        runs: dict[str | None, list[dict[str, Any]]] = {name: [] for name in paths}
        for _ in range(rounds):
            for name, path in paths.items():
                command: list[str | Path] = [PYTHON, "-m", "benchmarks.partition_rate", path]
                printed = subprocess.run(command, check=True, capture_output=True, cwd=HERE.parent).stdout
                runs[name].append(json.loads(printed))
        for name, path in paths.items():
            middle = {key: statistics.median(run[key] for run in runs[name]) for key in runs[name][0]}
            size = path.stat().st_size / middle["events"]
            results.append({**middle, "node_map": name, "bytes_per_event": size, "runs": runs[name]})
    return results


def _rate_table(rates: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| Parquet -> exact partition | events | million events per CPU s | times reading with pyarrow | peak MB | bytes an event |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['ranks']:.0f} ranks{_NODE_MAPS[r['node_map']]} | {r['events']:.0f} | {r['million_events_per_cpu_s']:.2f} | {r['times_reading']:.1f} "
        f"| {r['peak_mb']:.0f} | {r['bytes_per_event']:.1f} |"
        for r in rates
    ]
    return "\n".join(lines)


def _ours(*arguments: str) -> list[str | Path]:
    return [PYTHON, "-m", "specanalyze", *arguments]


def _python(code: str) -> list[str | Path]:
    return [PYTHON, "-c", code]


def _script(peer: str) -> str:
    return "holistic_trace_analysis" if peer == "HolisticTraceAnalysis" else "tracelens"


def _peers(folder: Path) -> dict[str, Path]:
    """Peers that can be imported -> the Python that has them; says which are missing."""
    python = folder / "bin" / "python"
    found = {}
    for peer, package in PEERS.items():
        there = (
            python.exists() and not subprocess.run([python, "-c", f"import {package}"], capture_output=True).returncode
        )
        if there:
            found[peer] = python
        else:
            print(f"{peer} is not measured: not in {folder}; run python -m benchmarks.install_peers", file=sys.stderr)
    return found


def _machine() -> dict[str, Any]:
    return {"processor": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}


if __name__ == "__main__":
    main()
