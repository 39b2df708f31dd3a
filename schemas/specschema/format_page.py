"""The documentation page of the trace format: ``python -m specschema.format_page docs/trace-format.md``."""

from __future__ import annotations

from specschema.events import ALL, COLUMNS, KINDS
from specschema.metadata import KEY_PREFIX, SCHEMA_VERSION, SECTIONS, VERSION_KEY
from specschema.page import table, write_page
from specschema.phases import (
    BETWEEN,
    COMMUNICATION_BUCKETS,
    COMPUTE_BUCKETS,
    CYCLE,
    CYCLE_MODES,
    IDLE_BUCKETS,
    MEMORY_BUCKETS,
    OTHER_LEAF_PHASES,
    OUTSIDE,
    RANGE_PREFIX,
    SPECULATIVE_PHASES,
    SUB_PHASES,
    UNATTRIBUTED,
)


def _code(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _introduction() -> str:
    return f"""\
# Trace format, version {SCHEMA_VERSION}

Generated from `specschema` by `python -m specschema.format_page docs/trace-format.md`.

A trace is one Parquet file, `trace.parquet`; a folder or several files of the same recording are read as one. One row is
one event. Times are integer nanoseconds since the Unix epoch by the rank's host clock. A value that is not known is
null, never 0. Strings are dictionary-encoded, files are compressed with zstd, and a row group holds one rank, so that
ranks can be read apart and in parallel. Prompts and outputs are never recorded.

A reader accepts every older version and refuses a newer one by name. Unit, meaning and kinds of a column are also in
the metadata of its Arrow field.
"""


def _phases() -> str:
    rows = [
        (_code(SPECULATIVE_PHASES), "leaves of a speculative cycle"),
        (_code(OTHER_LEAF_PHASES), "leaves where none of those encloses the instant"),
        (f"`{CYCLE}`", "within a cycle, but in no leaf"),
        (f"`{BETWEEN}`", "host time in no recognised range"),
        (f"`{OUTSIDE}`", "device work whose launch call is known but lies in no recognised range"),
        (f"`{UNATTRIBUTED}`", "device work whose launch call was not recorded"),
        (_code(SUB_PHASES), "sub-phases: stored and shown on request, never leaves"),
    ]
    return table(("phase", "what it holds"), rows)


def _buckets() -> str:
    rows = [
        ("compute", _code(COMPUTE_BUCKETS)),
        ("communication", _code(COMMUNICATION_BUCKETS)),
        ("memory", _code(MEMORY_BUCKETS)),
        ("idle", _code(IDLE_BUCKETS)),
    ]
    return table(("tier", "buckets"), rows)


def page() -> str:
    """The page as Markdown."""
    columns = [
        (
            f"`{column.name}`",
            column.type,
            column.unit,
            column.meaning,
            "all" if column.kinds == ALL else ", ".join(column.kinds),
        )
        for column in COLUMNS
    ]
    sections = [(f"`{VERSION_KEY}`", "version of the format, a whole number")]
    sections += [(f"`{KEY_PREFIX}{name}`", meaning) for name, meaning in SECTIONS.items()]
    return "\n".join(
        (
            _introduction(),
            f"## Kinds of events\n\n{table(('kind', 'meaning'), ((f'`{k}`', m) for k, m in KINDS.items()))}\n",
            f"## Columns\n\n{table(('column', 'type', 'unit', 'meaning', 'kinds that fill it'), columns)}\n",
            f"Modes of a cycle: {_code(CYCLE_MODES)}.\n",
            "## File metadata\n\nJSON documents in the key-value metadata of the Parquet footer.\n",
            f"{table(('key', 'what it holds'), sections)}\n",
            f"## Phases\n\nNames of `phase` rows. The collector's own NVTX ranges bear the same names after "
            f"`{RANGE_PREFIX}`.\n\n{_phases()}\n",
            "## Buckets\n\nEvery instant of a rank's window belongs to one phase and one bucket. Of several activities that "
            f"run at once the highest tier has the instant.\n\n{_buckets()}\n\n"
            "How a kernel finds its bucket: [kernel classes](kernel-classes.md).\n",
        )
    )


if __name__ == "__main__":
    write_page(page, "specschema.format_page")
