"""``export``: a recording as a file that another program draws."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from specanalyze.exports import chrome
from specanalyze.exports.export_events import ExportedRank, exported_ranks
from specanalyze.exports.new_files import NewFiles
from specanalyze.exports.nvtxt import EarlierRankError, write_nvtxt
from specanalyze.exports.perfetto import write_perfetto
from specanalyze.formats.nsys_install import find
from specanalyze.trace import Trace
from specschema.errors import UsageError

FORMATS: Final = {
    "nsys": "Nsight Systems: .nsys-rep where it is installed, else .nvtxt for its importer",
    "perfetto": "Perfetto's protobuf trace: ui.perfetto.dev, all ranks in one file",
    "chrome": "Chrome JSON(.gz) as torch.profiler writes it, one file a rank",
}
"""What can be written, and for what."""

_REPORT: Final = ".nsys-rep"
_NVTXT: Final = ".nvtxt"
_JSON: Final = re.compile(r"\.json(?:\.gz)?$")


@dataclass
class Exported:
    """What was written.

    Attributes:
        files: in order.
        events: slices, marks and rows in them.
        notes: what a reader must know, one line each.
    """

    files: list[Path] = field(default_factory=list)
    events: int = 0
    notes: list[str] = field(default_factory=list)


def export(
    trace: Trace,
    to: str,
    output: Path,
    *,
    cycles: tuple[int, int] | None = None,
    phase_map: Mapping[str, str] | None = None,
    force: bool = False,
) -> Exported:
    """Write a recording for another program, rank by rank.

    Args:
        trace: the recording.
        to: one of FORMATS.
        output: the file; with chrome and several ranks each gets its own beside it (``trace.json`` -> ``trace.rank0.json``).
        cycles: (first, one past the last) cycle to write; everything when None.
        phase_map: regular expression -> phase for range names that are not built in.
        force: replace existing files.

    Raises:
        UsageError: an unknown format, a name that does not fit it, or files that exist or can't be written.
        TraceError: a rank that can't be read or has none of the cycles, or an importer that refuses.
    """
    refuse_name(to, output, force=force)
    if to == "nsys":
        return _nsys(trace, output, cycles, phase_map, force)
    if to == "perfetto":
        return _perfetto(trace, output, cycles, phase_map, force)
    return _chrome(trace, output, cycles, phase_map, force)


def refuse_name(to: str, output: Path, *, force: bool = False) -> None:
    """Refuse, before a trace is read, what could not be written in the end.

    Raises:
        UsageError: an unknown format, a name that does not fit it, no such folder, a folder, or an existing file without ``force``
            (Chrome's files of several ranks get names of their own, which are looked at later).
    """
    if to not in FORMATS:
        raise UsageError(f"--to {to}: use one of {', '.join(FORMATS)}")
    if not os.path.isdir(output.parent):
        raise UsageError(f"{output}: no such folder {output.parent}")
    if os.path.isdir(output):
        raise UsageError(f"{output} is a folder; name a file in it")
    if to == "nsys" and output.suffix not in (_REPORT, _NVTXT):
        raise UsageError(f"{output}: the name must end in {_REPORT} or {_NVTXT}")
    if to == "perfetto" and _JSON.search(output.name):
        raise UsageError(f"{output}: --to perfetto writes protobuf; name it .pftrace, or use --to chrome for JSON")
    if to == "chrome" and not _JSON.search(output.name):
        raise UsageError(f"{output}: the name must end in .json or .json.gz")
    if to != "chrome" and os.path.lexists(output) and not force:
        raise UsageError(f"{output} exists: give another name, or --force to overwrite it")


def _nsys(
    trace: Trace, output: Path, cycles: tuple[int, int] | None, phase_map: Mapping[str, str] | None, force: bool
) -> Exported:
    report = output if output.suffix == _REPORT else None
    done = Exported()
    text = output.with_suffix(_NVTXT)
    importer = find() if report is not None else None
    keep = importer is None or importer.importer is None
    # Text that is only a step to the report must not take the place of a file of the user's.
    path = text if keep else output.with_name(f".{output.stem}.{secrets.token_hex(4)}{_NVTXT}")
    title = ", ".join(Path(name).name for name in trace.name.split(", "))
    origin: int | None = None
    try:
        with NewFiles(force=force) as files, files.open(path) as file:
            while True:
                try:
                    origin, done.events = write_nvtxt(file, title, exported_ranks(trace, phase_map, cycles), origin)
                    break
                except EarlierRankError as earlier:
                    origin = earlier.origin_ns
                    file.seek(0)
                    file.truncate()
        if report is None or importer is None or keep:
            done.files.append(text)
            if report is not None:
                done.notes.append(
                    f"no ImportNvtxt of Nsight Systems was found here ($NSYS, PATH, usual folders); where it is installed run: "
                    f"ImportNvtxt --cmd create -n {text} -o {report}"
                )
        else:
            made = report.with_name(f".{report.stem}.{secrets.token_hex(4)}{_REPORT}")
            try:
                importer.create_report(path, made)
                os.replace(made, report)
            finally:
                made.unlink(missing_ok=True)
            done.files.append(report)
            done.notes.append("it opens in the Nsight Systems that made it and in newer ones")
    finally:
        if not keep:
            path.unlink(missing_ok=True)
    done.notes.append(
        f"time 0 is {origin} ns since 1970-01-01 UTC; device work, launches and collectives are rows of ranges, because NVTXT "
        "has no other; nsys stats does not see them"
    )
    return done


def _perfetto(
    trace: Trace, output: Path, cycles: tuple[int, int] | None, phase_map: Mapping[str, str] | None, force: bool
) -> Exported:
    with NewFiles(force=force) as files, files.open(output) as file:
        events = write_perfetto(file, exported_ranks(trace, phase_map, cycles))
    return Exported([output], events, ["open it at ui.perfetto.dev: it stays on your machine"])


def _chrome(
    trace: Trace, output: Path, cycles: tuple[int, int] | None, phase_map: Mapping[str, str] | None, force: bool
) -> Exported:
    ending = _JSON.search(output.name)
    assert ending is not None  # refuse_name saw to it
    stem = output.name[: ending.start()]
    several = len(trace.sources) > 1
    names = {
        source.key: output.with_name(f"{stem}.{_rank_part(source.key)}{ending.group()}") if several else output
        for source in trace.sources
    }
    taken = [path for path in names.values() if path.exists()]
    if taken and not force:
        raise UsageError(f"{taken[0]} exists: give another name, or --force to overwrite it")
    done = Exported(notes=[f"not kept by the format: {line}" for line in chrome.LEFT_OUT])

    with NewFiles(force=force) as files:

        def write(rank: ExportedRank) -> None:
            if rank.trace.rank < 0:
                done.notes.append(_without_rank(names[rank.trace.key].name, rank.label, several=several))
            with files.open(names[rank.trace.key]) as file:
                done.events += chrome.write_chrome(file, rank, trace.metadata)
            done.files.append(names[rank.trace.key])

        for _ in map(write, exported_ranks(trace, phase_map, cycles)):  # a loop variable would hold a rank longer
            pass
    return done


def _without_rank(file: str, label: str, *, several: bool) -> str:
    """What an import makes of a process whose rank nothing tells."""
    alone = ", which it can do for one of these files at a time" if several else ""
    return f"not kept by the format: that {file} is {label}, of no known rank: an import takes it as rank 0{alone}"


def _rank_part(key: str) -> str:
    return f"rank{key}" if key.isdecimal() else re.sub(r"[^A-Za-z0-9_-]+", "-", key)
