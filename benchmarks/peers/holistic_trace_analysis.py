"""HolisticTraceAnalysis on the rank files given: load, and the analyses that together answer what ``breakdown`` answers."""

from __future__ import annotations

import sys


def main() -> None:
    """Run as a whole process in the peers' environment: ``python holistic_trace_analysis.py RANK0.json RANK1.json ...``."""
    from hta.trace_analysis import TraceAnalysis

    files = dict(enumerate(sys.argv[1:]))
    analysis = TraceAnalysis(trace_files=files, trace_dir="")
    ranks = list(files)
    analysis.get_gpu_kernel_breakdown(visualize=False)
    analysis.get_comm_comp_overlap(visualize=False)
    analysis.get_temporal_breakdown(visualize=False)
    analysis.get_idle_time_breakdown(ranks=ranks, visualize=False)
    analysis.get_cuda_kernel_launch_stats(ranks=ranks, visualize=False)


if __name__ == "__main__":
    main()
