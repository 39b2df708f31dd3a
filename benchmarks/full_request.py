"""One whole request on 8 ranks: merging what the collector wrote, and every command on it, with time and memory.

    python -m benchmarks.full_request [--cycles 970] [--ranks 8] [--node-map] [--data FOLDER] [--rounds 3]
    python -m benchmarks.full_request --node-map --commands      # every command in one process, instead of merge and breakdown

Every cycle of the request lies in a profiler window, which no recording would do (a window of some dozens is enough), and nearly no
draft is accepted: 1000 tokens in 970 cycles of 1288 events, 10 million events on 8 ranks. The ranks' files are written as the
collector writes them, with ``--node-map`` those of a server whose graphs were captured under the collector. The goal is a minute for merge
and breakdown on 2 cores, and for the other commands a memory and a time near the breakdown's.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import inputs
from benchmarks.process_cost import Contest, table

VERSION: Final = "2"
"""Part of the folder's name; raise it when ``write_rank`` changes what it writes."""
SECOND_TOKEN: Final = 32
"""Every so many cycles a draft is accepted."""

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

    from speccollect.parts.part_file import write_part

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
    write_part(folder / f"rank{rank:05}.window000.parquet", _table(_decoded(rows)), sections)


def _decoded(rows: Any) -> Any:
    """The same rows; cycles tell what they decoded, as the hooks of a scheduler do: one request, two drafts, mostly none accepted."""
    import polars as pl

    cycle = pl.col("kind").cast(pl.String) == "cycle"
    number = (cycle.cum_sum() - 1).cast(pl.Int64)
    accepted = pl.when(number % SECOND_TOKEN == 0).then(1).otherwise(0)

    def told(value: pl.Expr) -> pl.Expr:
        return pl.when(cycle).then(value)

    return rows.with_columns(
        cycle=told(number),
        mode=told(pl.lit("speculative")),
        batch_size=told(pl.lit(1)),
        draft_tokens=told(pl.lit(2)),
        request_ids=told(pl.concat_list(pl.lit("request"))),
        accept_lengths=told(pl.concat_list(accepted + 1)),
        accepted_draft_tokens=told(pl.concat_list(accepted)),
        context_tokens=told(number + 64),
    )


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


def commands(trace: Path, again: Path, folder: Path) -> Mapping[str, Sequence[str | Path]]:
    """Every command that analyses a recording or writes it anew, in one process each (exports take up to 4 GB of the folder).

    Args:
        trace, again: the recording, under two names.
        folder: where reports and exports go.
    """
    one = ("--jobs", "1")
    return {
        "breakdown": ("breakdown", trace, *one),
        "breakdown --json": ("breakdown", trace, "--json", *one),
        "phases": ("phases", trace, *one),
        "layers": ("layers", trace, *one),
        "kernels": ("kernels", trace, *one),
        "ranks": ("ranks", trace, *one),
        "ranks --json": ("ranks", trace, "--json", *one),
        "accept": ("accept", trace, *one),
        "overhead": ("overhead", trace, *one),
        "diagnose": ("diagnose", trace, *one),
        "whatif --scale allreduce=0.7": ("whatif", trace, "--scale", "allreduce=0.7", *one),
        "compare, with itself": ("compare", trace, again, *one),
        "sweep, of two": ("sweep", trace, again, "--values", "2,3", *one),
        "validate": ("validate", trace, *one),
        "report": ("report", trace, "-o", folder / "report.html", "--force"),
        "export --to perfetto --cycles 100:150": (
            *("export", trace, "--to", "perfetto", "--cycles", "100:150"),
            *("-o", folder / "export.pftrace", "--force"),
        ),
        "export --to perfetto": ("export", trace, "--to", "perfetto", "-o", folder / "export.pftrace", "--force"),
        "export --to chrome": ("export", trace, "--to", "chrome", "-o", folder / "export.json.gz", "--force"),
        "export --to nsys": ("export", trace, "--to", "nsys", "-o", folder / "export.nvtxt", "--force"),
        "import": ("import", trace, "-o", folder / "import.parquet", "--force"),
        "redact": ("redact", trace, "-o", folder / "redact.parquet", "--force"),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=970)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--data", type=Path, default=inputs.CACHE, metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--node-map", action="store_true", help="with the nodes of captured graphs")
    parser.add_argument(
        "--commands", action="store_true", help="every command in one process, instead of merge and breakdown"
    )
    given = parser.parse_args()
    folder = given.data / f"request-{VERSION}-{given.cycles}-{given.ranks}{'-nodes' if given.node_map else ''}"
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(given.ranks):
        if not (folder / f"rank{rank:05}.window000.parquet").exists():
            # A process each: whoever measures must stay small.
            words = [str(folder), str(rank), str(given.ranks), str(given.cycles), str(int(given.node_map))]
            subprocess.run([sys.executable, "-c", _WRITE, *words], check=True, cwd=Path(__file__).parents[1])
    trace = given.data / f"{folder.name}.parquet"
    merge = [sys.executable, "-m", "speccollect", "merge", "--dir", folder, "-o", trace, "--force"]
    analyzer = [sys.executable, "-m", "specanalyze"]
    contests: dict[str, Sequence[str | Path]] = {
        "merge": merge,
        "breakdown, as many jobs as repay": [*analyzer, "breakdown", trace],
        "breakdown --jobs 1": [*analyzer, "breakdown", trace, "--jobs", "1"],
    }
    if given.commands:
        again = given.data / f"{folder.name}-again.parquet"
        subprocess.run([*map(str, merge)], check=True, stdout=subprocess.DEVNULL)
        again.unlink(missing_ok=True)
        os.link(trace, again)
        contests = {name: [*analyzer, *words] for name, words in commands(trace, again, given.data).items()}
    name = f"{given.cycles} cycles, {given.ranks} ranks{', node map' if given.node_map else ''}"
    print(table(Contest(name, contests, given.rounds).hold(lambda line: print(line, file=sys.stderr, flush=True))))
    print(f"trace.parquet: {trace.stat().st_size / 1e6:.1f} MB, {_rows(trace)} events")


def _rows(trace: Path) -> int:
    code = "import pyarrow.parquet as pq, sys; print(pq.read_metadata(sys.argv[1]).num_rows)"
    return int(subprocess.run([sys.executable, "-c", code, trace], check=True, capture_output=True).stdout)


if __name__ == "__main__":
    main()
