"""`speccollect` and `python -m speccollect`: one line for an error of the user's, a traceback for one of ours."""

from __future__ import annotations

import sys

from specschema.errors import SpecError, UsageError


def main() -> None:
    """Run the command line. Exit codes: 0 fine, 1 the server or the data can't do it, 2 usage."""
    try:
        from speccollect.cli import app
    except ImportError as error:
        sys.stderr.write(f"speccollect: {error.name} is missing: pip install 'specanalyze[collector]'\n")
        sys.exit(2)
    try:
        app()
    except SpecError as error:
        sys.stderr.write(f"speccollect: {error}\n")
        sys.exit(2 if isinstance(error, UsageError) else 1)


if __name__ == "__main__":
    main()
