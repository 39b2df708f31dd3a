"""Inputs of random choices, or of a corpus, through whole commands: for where coverage can't guide, as under sanitizers.

    python tests/fuzz/random_inputs.py SECONDS SEED [CORPUS]

CORPUS is a folder with a folder of inputs for each target. Every compiled helper is loaded first, so that small files meet it, too.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import typer
from promise import outcome
from targets import TARGETS

from specanalyze import cli
from specanalyze.native.library import FOLDER, library


def inputs(seed: int, corpus: Path | None) -> Iterator[tuple[str, bytes]]:
    """(target, input) without end: those of the corpus first, then random ones."""
    if corpus is not None:
        for path in sorted(corpus.glob("*/*")):
            if path.parent.name in TARGETS:
                yield path.parent.name, path.read_bytes()
    dice = random.Random(seed)
    while True:
        yield dice.choice(list(TARGETS)), dice.randbytes(dice.randrange(20, 400))


def main(seconds: float, seed: int, corpus: Path | None) -> int:
    """Number of inputs that were tried."""
    missing = [path.stem for path in FOLDER.glob("*.c") if library(path.stem) is None]
    if missing:
        sys.exit(f"not compiled: {', '.join(missing)}")
    vars(cli)["app"] = typer.main.get_command(cli.app)
    tried, until = 0, time.process_time() + seconds
    with tempfile.TemporaryDirectory(prefix="specanalyze-fuzz-") as folder:
        place = Path(folder) / "files"
        place.mkdir()
        for name, data in inputs(seed, corpus):
            if time.process_time() > until:
                break
            outcome(TARGETS[name](data, place))
            tried += 1
    return tried


if __name__ == "__main__":
    count = main(float(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]) if sys.argv[3:] else None)
    sys.stdout.write(f"{count} inputs, nothing found\n")
