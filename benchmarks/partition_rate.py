"""CPU seconds from trace.parquet to the exact partition of every rank and the waiting for each other, without imports; prints JSON.

    python -m benchmarks.partition_rate trace.parquet [repeats]

Beside it, on the same file: reading the same columns with pyarrow alone, which is the floor. Medians of the repeats.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq

from specanalyze.answers.breakdown import break_down
from specanalyze.formats.load import open_trace

FILLED = ("kind", "rank", "pid", "name", "start_ns", "dur_ns", "tid", "window", "correlation", "device", "stream")


def main() -> None:
    """Command line."""
    path = Path(sys.argv[1])
    file = pq.ParquetFile(path)
    events = file.metadata.num_rows
    reads, wholes, peak = [], [], 0
    for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 1):
        began = time.process_time()
        result = break_down(open_trace([path]))
        for rank in result.ranks:
            for phase in rank.buckets_ns:
                result.waiting(rank.key, phase)
        wholes.append(time.process_time() - began)
        peak = peak or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # reading whole row groups takes more
        began = time.process_time()
        for group in range(file.num_row_groups):
            file.read_row_group(group, columns=[*FILLED, "grid", "block"])
        reads.append(time.process_time() - began)
    read, whole = statistics.median(reads), statistics.median(wholes)
    json.dump(
        {
            "events": events,
            "ranks": len(result.ranks),
            "read_cpu_s": read,
            "breakdown_cpu_s": whole,
            "million_events_per_cpu_s": events / whole / 1e6,
            "times_reading": whole / read,
            "peak_mb": peak * 1024 / 1e6,
            "window_ns": sum(rank.window_ns for rank in result.ranks),
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
