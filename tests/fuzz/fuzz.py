"""Coverage-guided fuzzing of the importers, through whole commands.

    python tests/fuzz/fuzz.py TARGET [CORPUS] [libFuzzer's options, such as -max_total_time=600 -runs=1000]

An input that breaks the promise (see promise.py) ends the run and is written as crash-*; run it again by giving its name as the
corpus. Needs atheris (pip install atheris).
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import sys
import tempfile
from pathlib import Path

import atheris
import typer

with atheris.instrument_imports(include=["specanalyze", "specschema"]):
    from promise import outcome
    from targets import TARGETS, documents

    import specanalyze
    from specanalyze import cli

    # Commands import what they need when they run: by then nothing would be instrumented, and no input would lead anywhere new.
    for module in pkgutil.walk_packages(specanalyze.__path__, "specanalyze."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def main(arguments: list[str]) -> None:
    """Fuzz one target."""
    if len(arguments) < 2 or arguments[1] not in TARGETS:
        sys.stderr.write(f"usage: fuzz.py TARGET [CORPUS] [OPTIONS]; targets: {', '.join(TARGETS)}\n")
        sys.exit(2)
    target = TARGETS[arguments[1]]
    documents()
    # Built once: three quarters of an input's time went into making the same command line again.
    vars(cli)["app"] = typer.main.get_command(cli.app)
    with tempfile.TemporaryDirectory(prefix="specanalyze-fuzz-") as folder:
        place = Path(folder) / "files"
        place.mkdir()

        def one(data: bytes) -> None:
            command = target(data, place)
            # What the command prints is held to the promise; libFuzzer's own lines go to stderr's file descriptor.
            with contextlib.suppress(BrokenPipeError):
                outcome(command)

        atheris.Setup([arguments[0], *arguments[2:]], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
