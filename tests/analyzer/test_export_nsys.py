"""The Nsight Systems export through NVIDIA's own importer and back, where it is installed."""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from installed_nsys import nsight_systems, run
from traces import kernel, launch, phase, rank_trace, trace

from specanalyze import cli
from specanalyze.exports.export import export
from specanalyze.exports.export_events import exported_ranks
from specanalyze.exports.tracks import tracks
from specanalyze.formats.load import open_trace
from specanalyze.trace import Trace

BASE = 1_795_964_426_162_386_907
"""Unix ns that no double holds."""


def small() -> Trace:
    def rows(at: int) -> list[dict[str, Any]]:
        return [
            phase("spec.cycle", at, at + 100, cycle=3, batch_size=2, accept_lengths=[3, 1]),
            phase("spec.verify", at + 10, at + 90),
            launch("cudaGraphLaunch", at + 12, 7),
            kernel('void k<"q">(\n)', at + 30, at + 60, 7),
            kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", at + 50, at + 71, 7),
            kernel("empty", at + 71, at + 71, 7, stream=8),
        ]

    return trace(rank_trace(rows(BASE)), rank_trace(rows(BASE - 5), rank=1))


def test_the_text(tmp_path: Path) -> None:
    done = export(small(), "nsys", tmp_path / "t.nvtxt")
    lines = (tmp_path / "t.nvtxt").read_text().splitlines()
    assert lines[0] == 'SetFileDisplayName, "built.parquet"'
    assert done.events == sum(line.startswith(("RangePush", "Marker", "RangeStartEnd")) for line in lines)
    mine = [line for line in lines if line.startswith("Range") and ", 1, 1" in line]
    assert mine == [
        'RangePush, 5, 1, 1, DimGray, "spec.cycle [cycle 3 batch 2 accept 3,1]"',
        'RangePush, 15, 1, 1, CornflowerBlue, "spec.verify"',
        "RangePop, 95, 1, 1",
        "RangePop, 105, 1, 1",
    ]
    assert """RangePush, 35, 1, 3, LightSlateGray, "void k<'q'>( ) [verify other_compute unclassified]\"""" in lines
    assert f'Marker, 0, 1, 1, DarkOrange, "time 0 = {BASE - 5} ns since 1970-01-01 UTC"' in lines
    names = [line.split(", ", 3)[3] for line in lines if line.startswith("NameOsThread,")]
    assert len(names) == len(set(names)) == 12, "of two threads of one name the importer keeps one"
    processes = [line.split(", ")[1] for line in lines if line.startswith("NameProcess,")]
    assert len(set(processes)) == 2


def test_without_nsight_systems_the_text_stays_and_the_command_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("NSYS", raising=False)
    monkeypatch.setattr("specanalyze.formats.nsys_install._USUAL", ())
    done = export(small(), "nsys", tmp_path / "t.nsys-rep")
    assert done.files == [tmp_path / "t.nvtxt"]
    assert done.notes[0].endswith(f"ImportNvtxt --cmd create -n {tmp_path}/t.nvtxt -o {tmp_path}/t.nsys-rep")


def test_an_importer_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "install" / "host-linux-x64" / "ImportNvtxt"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho 'ProcessId: out of limit 16777215' >&2\nexit 1\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("NSYS", str(tmp_path / "install"))
    from specschema.errors import TraceError

    with pytest.raises(TraceError, match="ImportNvtxt failed: ProcessId: out of limit 16777215"):
        export(small(), "nsys", tmp_path / "t.nsys-rep")
    assert os.listdir(tmp_path) == ["install"]


def read_back(report: Path, nsys: Path) -> tuple[Counter[Any], dict[Any, str], int]:
    """(start, end, process, thread, text) of every range and mark, names of processes and threads, and the report's time 0."""
    target = report.with_suffix(".json")
    run(nsys, "export", "-q", "true", "-f", "true", "-t", "json", "-o", target, report)
    events: Counter[Any] = Counter()
    names: dict[Any, str] = {}
    zero = 0
    for line in target.read_text().splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        kind = row.get("Type")
        if kind in (65, 70, 71):
            nvtx = row["NvtxtEvent"]["Nvtx"]
            thread = int(nvtx["GlobalTid"])
            start = int(nvtx["Timestamp"])
            end = int(nvtx.get("EndTimestamp", start))
            events[start, end, thread >> 24, thread & 0xFFFFFF, nvtx.get("Text")] += 1
        elif kind == 72:
            thread = int(row["NvtxtMetaEvent"]["Thread"]["GlobalThreadId"])
            names[thread >> 24, thread & 0xFFFFFF] = row["NvtxtMetaEvent"]["Thread"]["Name"]
        elif kind == 73:
            process = int(row["NvtxtMetaEvent"]["Process"]["GlobalProcessId"])
            names[process >> 24] = row["NvtxtMetaEvent"]["Process"]["Name"]
        elif kind == 74:
            zero = int(row["NvtxtMetaEvent"]["Timestamp"])
    return events, names, zero


def check(recording: Trace, folder: Path, cycles: tuple[int, int] | None = None) -> int:
    installed = nsight_systems()
    assert installed.nsys is not None
    report = folder / "t.nsys-rep"
    done = export(recording, "nsys", report, cycles=cycles)
    assert done.files == [report]
    assert [path.name for path in folder.iterdir()] == ["t.nsys-rep"]
    events, names, zero = read_back(report, installed.nsys)
    ranks = list(exported_ranks(recording, None, cycles))
    origin = min(rank.start_ns for rank in ranks if rank.start_ns is not None)
    want: Counter[Any] = Counter()
    threads: dict[Any, str] = {}
    processes = sorted({key for key in names if isinstance(key, int)}, key=lambda p: names[p])
    for rank, process in zip(ranks, processes, strict=True):
        threads[process] = rank.label if rank.trace.host is None else f"{rank.label} on {rank.trace.host}"
        if rank.number == 0:
            want[zero, zero, process, 1, f"time 0 = {origin} ns since 1970-01-01 UTC"] += 1
        for number, track in enumerate(tracks(rank), 1):
            threads[process, number] = f"{track.name} | {rank.label}"
            for start, length, name, facts in track.slices.select("start_ns", "dur_ns", "name", "detail").iter_rows():
                text = (f"{name} [{facts}]" if facts else name).replace('"', "'").replace("\n", " ")
                want[start - origin + zero, start - origin + zero + length, process, number, text] += 1
    assert sum(want.values()) == done.events
    assert events == want
    assert names == threads
    return done.events


def test_the_real_importer_reads_back_every_range_and_time(tmp_path: Path) -> None:
    check(small(), tmp_path)


def test_cycles_of_a_real_recording(reference: Path, tmp_path: Path) -> None:
    folder = reference / "traces" / "sglang_h200" / "tp2"
    recording = open_trace([folder / f"e2_m17_rank{i}.json.gz" for i in (0, 1)])
    assert check(recording, tmp_path, cycles=(60, 64)) > 10_000


def test_processes_are_named_by_rank_and_host(tmp_path: Path) -> None:
    sample = Path(__file__).resolve().parents[2] / "samples" / "sglang_tp2_plain.parquet"
    recording = open_trace([sample])
    assert all(rank.host for rank in recording.ranks())
    assert check(recording, tmp_path, cycles=(63, 65)) > 1000


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = Path(__file__).resolve().parents[1] / "cases" / "37-nsys-multi-process-correlation" / "report.sqlite"
    arguments = ["export", str(case), "--to", "nsys", "-o", str(tmp_path / "t.nvtxt")]
    assert cli.run(arguments) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        f"{tmp_path}/t.nvtxt: {(tmp_path / 't.nvtxt').stat().st_size} bytes",
        "19 events of 2 ranks",
    ]
    assert cli.run(arguments) == 2
    assert (
        capsys.readouterr().err == f"error: {tmp_path}/t.nvtxt exists: give another name, or --force to overwrite it\n"
    )
    assert cli.run([*arguments, "--force", "--cycles", "9"]) == 2
    assert "write A:B" in capsys.readouterr().err
    assert cli.run([*arguments, "--force", "--cycles", "0:1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == [f"{tmp_path}/t.nvtxt"]


def test_a_report_of_ours_is_no_recording_to_import(tmp_path: Path) -> None:
    """NVTXT events are not in nsys' exports: that is said, not shown as an empty trace."""
    nsight_systems()
    export(small(), "nsys", tmp_path / "t.nsys-rep")
    from specschema.errors import TraceError

    with pytest.raises(TraceError, match="no GPU activity"):
        open_trace([tmp_path / "t.nsys-rep"])
