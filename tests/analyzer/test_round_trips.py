"""What a recording comes to stays the same to the nanosecond through every file that is made of it and can be read again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from specanalyze.answers.breakdown import break_down
from specanalyze.attribution.carry_nodes import with_nodes
from specanalyze.exports.export import export
from specanalyze.exports.redact import redact
from specanalyze.formats.load import open_trace
from specanalyze.formats.trace_files import write_trace
from specanalyze.trace import Trace
from specschema.errors import SpecError, TraceError

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = [ROOT / "samples" / f"{name}.parquet" for name in ("sglang_tp2_plain", "embedded_tp2")]


def inputs() -> list[Path]:
    """Every case, as a user gives it, and two recordings."""
    found = []
    for case in sorted((ROOT / "tests" / "cases").iterdir()):
        if case.is_dir():
            files = [path for path in case.iterdir() if path.name not in ("expected.json", "why.md")]
            found.append(files[0] if len(files) == 1 else case)
    return [*found, *SAMPLES]


def named(path: Path) -> str:
    return path.parent.name if path.is_file() and path not in SAMPLES else path.name


def may_be_refused(path: Path) -> bool:
    """Whether a case is of refusals or of another command, or takes more than its input: a phase map, one file at a time."""
    case = path if path.is_dir() else path.parent
    expected = json.loads((case / "expected.json").read_text())
    return expected["expect"] != "result" or "phase_map" in expected or "separate_inputs" in expected


def through_import(recording: Trace, folder: Path) -> Trace:
    write_trace(with_nodes(recording), folder / "t.parquet")
    return open_trace([folder / "t.parquet"])


def through_chrome(recording: Trace, folder: Path) -> Trace:
    return open_trace(export(recording, "chrome", folder / "t.json").files)


def redacted(recording: Trace, folder: Path) -> Trace:
    write_trace(redact(recording)[0], folder / "t.parquet")
    return open_trace([folder / "t.parquet"])


def summed(recording: Trace, *without: str) -> list[dict[str, Any]]:
    """Every figure of every rank. Names of kernels and ranges are no figures."""
    names = ("source", "unrecognised", "unclassified_names", "unknown_communication", *without)
    found = []
    for rank in break_down(recording).ranks:
        values = {f.name: getattr(rank, f.name) for f in fields(rank) if f.name not in names}
        found.append({name: v.to_dicts() if isinstance(v, pl.DataFrame) else v for name, v in values.items()})
    return found


@pytest.mark.parametrize("way", [through_import, through_chrome, redacted], ids=lambda way: way.__name__)
@pytest.mark.parametrize("path", inputs(), ids=named)
def test_the_breakdown_stays(tmp_path: Path, path: Path, way: Callable[[Trace, Path], Trace]) -> None:
    try:
        want = summed(open_trace([path]))
    except SpecError as error:
        if not may_be_refused(path):
            raise
        pytest.skip(f"refused: {error}")
    recording = open_trace([path])
    unknown = [source.key for source in recording.sources if not source.key.isdecimal()]
    if way is not through_chrome or not unknown:
        assert summed(way(recording, tmp_path)) == want
        return
    # Chrome JSON has no place for a process of no known rank: that is said.
    done = export(recording, "chrome", tmp_path / "t.json")
    assert sum("of no known rank: an import takes it as rank 0" in note for note in done.notes) == len(unknown)
    for rank, file in zip(want, done.files, strict=True):
        if not rank["windows"]:
            continue  # a process without ranges is not taken apart by itself
        (alone,) = summed(open_trace([file]), "key")
        assert alone == {name: value for name, value in rank.items() if name != "key"}
    if len(unknown) > 1:
        assert all("one of these files at a time" in note for note in done.notes if "known rank" in note)
        with pytest.raises(TraceError, match="rank 0 appears twice"):
            open_trace(done.files)
