"""Installs the tools that the analyzer is measured against into a virtual environment of their own.

    python -m benchmarks.install_peers [--to FOLDER] [--tracelens CHECKOUT]

HolisticTraceAnalysis comes from PyPI. TraceLens (AMD-AGI) is not on PyPI, where that name belongs to another project: it
is installed from its repository at the commit that docs/performance.md measures, or from a checkout of it. Its package
needs only some of what its setup.py lists, so it is put on the path without them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
from pathlib import Path

from benchmarks.inputs import CACHE

HTA = "HolisticTraceAnalysis==0.5.0"
TRACELENS = "https://github.com/AMD-AGI/TraceLens"
TRACELENS_COMMIT = "171dd74721ca1ec45709e5805b68ae1f65e27811"
TRACELENS_NEEDS = ("pandas", "orjson", "tqdm", "openpyxl", "tabulate", "PyYAML", "matplotlib")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=CACHE / "peers")
    parser.add_argument("--tracelens", type=Path, help="a checkout of it, where its repository can't be reached")
    given = parser.parse_args()
    subprocess.run([sys.executable, "-m", "venv", given.to], check=True)
    pip = [given.to / "bin" / "python", "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, HTA, *TRACELENS_NEEDS], check=True)
    checkout = given.tracelens
    if checkout is None:
        checkout = given.to / "TraceLens"
        if not checkout.exists():
            subprocess.run(["git", "clone", "--quiet", "--filter=blob:none", TRACELENS, checkout], check=True)
        subprocess.run(["git", "-C", checkout, "checkout", "--quiet", TRACELENS_COMMIT], check=True)
    packages = given.to / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    (packages / "tracelens.pth").write_text(f"{checkout.resolve()}\n")


if __name__ == "__main__":
    main()
