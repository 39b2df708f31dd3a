"""One whole request on 8 ranks: merging what the collector wrote, and the breakdown of it, with time and memory.

    python -m benchmarks.full_request [--cycles 970] [--ranks 8] [--node-map] [--data FOLDER] [--rounds 3]

Every cycle of the request lies in a profiler window, which no recording would do (a window of some dozens is enough), and nearly no
draft is accepted: 1000 tokens in 970 cycles of 1288 events, 10 million events on 8 ranks. The ranks' files are written as the
collector writes them, with ``--node-map`` those of a server whose graphs were captured under the collector. The goal is a minute for both
on 2 cores.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from benchmarks import inputs
from benchmarks.process_cost import Contest, table

_WRITE: Final = """
import sys
from pathlib import Path
from benchmarks.full_request import write_rank
rank, ranks, cycles, node_map = map(int, sys.argv[2:])
write_rank(Path(sys.argv[1]), rank, ranks, cycles, node_map=bool(node_map))
"""


def write_rank(folder: Path, rank: int, ranks: int, cycles: int, *, node_map: bool) -> None:
    """One rank's window and the nodes of its captured graphs, as its recorder would have closed them."""
    from benchmarks.event_table import events_a_cycle, node_rows, timed_rows

    from speccollect.part_file import write_part

    whole: dict[str, Any] = {"complete": True, "device": "cuda", "windows": [{"window": 0}], "id": 1, "started_ns": 1}
    sections: dict[str, Any] = {
        "recording": {**whole, "written_ns": 2, "source": "benchmark"},
        "clock": {"unit": "ns", "epoch": "unix"},
        "ranks": [{"rank": rank, "world_size": ranks}],
        "environment": {},
    }
    if node_map:
        write_part(folder / f"rank{rank:05}.nodes.parquet", _table(node_rows(rank, ranks)), sections)
    rows = timed_rows(rank, cycles * events_a_cycle(), seed=1, node_map="order" if node_map else None)
    write_part(folder / f"rank{rank:05}.window000.parquet", _table(rows), sections)


def _table(rows: Any) -> Any:
    """Rows as a table with every column of the format."""
    import pyarrow as pa

    from specschema.events import EVENT_SCHEMA

    events = rows.to_arrow()
    columns = [
        events[f.name].cast(f.type) if f.name in events.column_names else pa.nulls(events.num_rows, f.type)
        for f in EVENT_SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=EVENT_SCHEMA.remove_metadata())


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=970)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--data", type=Path, default=inputs.CACHE, metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--node-map", action="store_true", help="with the nodes of captured graphs")
    given = parser.parse_args()
    folder = given.data / f"request-{inputs.VERSION}-{given.cycles}-{given.ranks}{'-nodes' if given.node_map else ''}"
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(given.ranks):
        if not (folder / f"rank{rank:05}.window000.parquet").exists():
            # A process each: whoever measures must stay small.
            words = [str(folder), str(rank), str(given.ranks), str(given.cycles), str(int(given.node_map))]
            subprocess.run([sys.executable, "-c", _WRITE, *words], check=True, cwd=Path(__file__).parents[1])
    trace = given.data / f"{folder.name}.parquet"
    merge = [sys.executable, "-m", "speccollect", "merge", "--dir", folder, "-o", trace, "--force"]
    breakdown = [sys.executable, "-m", "specanalyze", "breakdown", trace]
    contests = {
        "merge": merge,
        "breakdown, as many jobs as repay": breakdown,
        "breakdown --jobs 1": [*breakdown, "--jobs", "1"],
    }
    name = f"{given.cycles} cycles, {given.ranks} ranks{', node map' if given.node_map else ''}"
    print(table(Contest(name, contests, given.rounds).hold(lambda line: print(line, file=sys.stderr, flush=True))))
    print(f"trace.parquet: {trace.stat().st_size / 1e6:.1f} MB, {_rows(trace)} events")


def _rows(trace: Path) -> int:
    code = "import pyarrow.parquet as pq, sys; print(pq.read_metadata(sys.argv[1]).num_rows)"
    return int(subprocess.run([sys.executable, "-c", code, trace], check=True, capture_output=True).stdout)


if __name__ == "__main__":
    main()
