"""Entry point: says what to install when something is missing, and turns user errors into one line."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; exit code 0 fine, 1 the data can't answer, 2 usage."""
    try:
        from specanalyze.cli import run
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in ("specanalyze", "specschema"):
            raise
        sys.stderr.write(f'{error.name} is not installed; run: pip install "specanalyze[analyzer]"\n')
        sys.exit(1)
    sys.exit(run())


if __name__ == "__main__":
    main()
