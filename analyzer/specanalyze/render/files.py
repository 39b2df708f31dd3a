"""Tables to files: written under a temporary name, renamed when whole, never over an existing file unless asked."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import polars as pl

from specanalyze.formats.plain_text import plain
from specschema.errors import UsageError
from specschema.figures import counted


def write_table(table: pl.DataFrame, path: Path, force: bool = False) -> None:
    """Write a table to ``.parquet`` or ``.csv``, and say so on stderr: nothing else is printed with ``--output``.

    Raises:
        UsageError: another ending, an existing file without ``force``, or a folder that can't be written.
    """
    if path.suffix not in (".parquet", ".csv"):
        raise UsageError(f"--output {path}: the name must end in .parquet or .csv")
    if path.exists() and not force:
        raise UsageError(f"{path} exists; choose another name or give --force")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if path.suffix == ".parquet":
            with temporary.open("xb") as file:  # polars itself opens names in UTF-8 only
                table.write_parquet(file, compression="zstd")
        else:
            flat = table.with_columns(
                pl.col(name).list.eval(pl.element().cast(pl.String)).list.join(" ")
                for name, kind in table.schema.items()
                if isinstance(kind, pl.List)
            )
            with temporary.open("xb") as file:
                flat.write_csv(file)
        os.replace(temporary, path)
        sys.stderr.write(f"{plain(str(path))}: {counted(table.height, 'row')} of {counted(table.width, 'column')}\n")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)
