"""TraceLens on the rank files given, one after another: tree, GPU timeline, kernels, kernel launchers."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    """Run as a whole process in the peers' environment: ``python tracelens.py RANK0.json RANK1.json ...``."""
    sys.path.remove(str(Path(__file__).parent))  # this file must not hide the package of the same name on some systems
    from TraceLens import TreePerfAnalyzer

    for path in sys.argv[1:]:
        analyzer = TreePerfAnalyzer.from_file(path)
        analyzer.get_df_gpu_timeline()
        analyzer.get_df_kernels()
        launchers = analyzer.get_df_kernel_launchers()
        analyzer.get_df_kernel_launchers_summary(launchers)


if __name__ == "__main__":
    main()
