"""The Chrome JSON export comes back through our own importer with every nanosecond."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from traces import kernel, launch, phase, rank_trace, trace

from specanalyze.answers.breakdown import break_down
from specanalyze.attribution.analysis import analyse
from specanalyze.cli import run
from specanalyze.exports.export import export
from specanalyze.formats.chrome_windows import unsaid_windows
from specanalyze.formats.event_frame import DTYPES
from specanalyze.formats.load import open_trace
from specanalyze.trace import Trace
from specschema.errors import TraceError, UsageError
from specschema.events import COLUMN_NAMES
from specschema.phases import PHASE_KEYS

SAMPLES = Path(__file__).resolve().parents[2] / "samples"

KEPT = (
    *("kind", "name", "pid", "tid", "start_ns", "dur_ns", "correlation", "device", "stream", "bytes", "grid", "block"),
    *("op", "dtype", "elements", "group", "group_ranks", "seq", "graph_id", "node"),
)
"""Columns that the format holds."""


def rows(recording: Trace) -> list[pl.DataFrame]:
    found = []
    for rank in recording.ranks():
        events = rank.events
        events = events.with_columns(pl.lit(None).alias(c) for c in KEPT if c not in events.columns)
        events = events.filter(
            ~pl.col("kind").cast(pl.String).is_in(["node", "request"]), pl.col("window").is_not_null()
        )
        texts = [
            pl.col(c).cast(pl.List(pl.String)).list.join(",") if c == "group_ranks" else pl.col(c).cast(pl.String)
            for c in KEPT
        ]
        found.append(events.select(texts))
    return found


def assert_round_trip(recording: Trace, folder: Path) -> None:
    done = export(recording, "chrome", folder / "t.json.gz")
    again = open_trace(done.files)
    for before, after in zip(rows(recording), rows(again), strict=True):
        assert before.height == after.height
        different = [c for c in KEPT if not before[c].equals(after[c], null_equal=True)]
        assert different == []


def test_every_kind_of_row(tmp_path: Path) -> None:
    base = 1_795_964_426_162_386_907
    collective: dict[str, Any] = {
        "op": "allreduce",
        "dtype": "BFloat16",
        "elements": 8192,
        "group": "tp",
        "group_ranks": [0, 1],
        "seq": 12,
    }
    recording = trace(
        rank_trace(
            [
                kernel("first of all", base, base + 1, None),
                phase("spec.cycle", base + 1, base + 100_000_001, window=0),
                phase("spec.verify", base + 1, base + 999, window=0),
                phase("never closed", base + 2, None, window=0),
                launch("cudaGraphLaunch", base + 3, 7, window=0),
                kernel(
                    'void k<"q">(\\n, é)',
                    base + 4,
                    base + 1_000_005,
                    7,
                    grid="132x1x1",
                    block="256x1x1",
                    graph_id=3,
                    node=5,
                ),
                kernel("ncclDevKernel_AllReduce", base + 6, base + 6, 7, **collective),
                kernel("no usable time", base + 7, None, 7),
                kernel("Memcpy DtoH", base + 8, base + 20, 7, kind="memcpy", bytes=4096),
                {**phase("c10d::allreduce_", base + 9, base + 11), "kind": "collective", **collective},
                {**phase("aten::mul", base + 9, base + 10), "kind": "op"},
                {**phase("mark", base + 12, base + 12), "kind": "mark"},
            ]
        )
    )
    frame = next(recording.ranks()).events.with_columns(pl.lit(0).alias("window").cast(pl.Int64))
    whole = Trace("t", (recording.sources[0].__class__("0", "t", lambda: rank_trace(frame.to_dicts())),))
    assert_round_trip(whole, tmp_path)


@pytest.mark.parametrize(
    "files",
    [
        ["sglang_h200/tp2/e2_m13_rank0.json.gz", "sglang_h200/tp2/e2_m13_rank1.json.gz"],
        ["public/hta_128rank_sampled_rank-0.json.gz"],
        ["public/tracelens_vllm_decode_fullgraph_replay_mi300x.json.gz"],
        ["public/tracelens_vllm_tp8_rank0_b200_eager.json.gz"],
    ],
    ids=["SGLang on two GPUs", "a rank of 128", "ROCm", "B200"],
)
def test_real_recordings(reference: Path, tmp_path: Path, files: list[str]) -> None:
    assert_round_trip(open_trace([reference / "traces" / file for file in files]), tmp_path)


def test_the_breakdown_is_the_same(reference: Path, tmp_path: Path) -> None:
    recording = open_trace([reference / "traces/sglang_h200/tp1/e5_m13_rank0.json.gz"])
    done = export(recording, "chrome", tmp_path / "t.json")
    before, after = (break_down(t).ranks[0] for t in (recording, open_trace(done.files)))
    assert after.buckets_ns == before.buckets_ns
    assert after.window_ns == before.window_ns


def two_windows() -> Trace:
    """Two windows whose correlation ids count from anew: 5 and 6 name a call of verify here, of draft there."""
    rows = []
    for window, (name, at) in enumerate([("spec.verify", 1000), ("spec.draft", 2000)]):
        rows += [
            phase(name, at, at + 100, window=window),
            launch("cudaLaunchKernel", at + 10, 5, window=window),
            launch("cudaLaunchKernel", at + 20, 6 + window, window=window),
            kernel("flash_fwd_kernel", at + 30, at + 40, 5, window=window),
            kernel("flash_fwd_kernel", at + 50, at + 60, 6 + window, window=window),
            kernel("without a launch call", at + 70, at + 71, None, window=window),
        ]
    return trace(rank_trace(rows))


def activities(recording: Trace) -> list[dict[str, int]]:
    """Rank by rank: phase -> device activities, over all windows."""
    found = []
    for rank in analyse(recording):
        counted = np.bincount(np.concatenate([w.activities.phase for w in rank.windows]), minlength=len(PHASE_KEYS))
        found.append({name: int(count) for name, count in zip(PHASE_KEYS, counted, strict=True) if count})
    return found


def device_busy(recording: Trace) -> list[dict[str, int]]:
    """Rank by rank: phase of the cycle -> ns in which the device was busy for it, over all windows."""
    ranks = break_down(recording).ranks
    return [{p: r.gpu_busy_ns.get(p, 0) for p in ("draft", "verify", "draft_extend", "decode")} for r in ranks]


def test_ids_of_one_window_name_no_call_of_another(tmp_path: Path) -> None:
    (path,) = export(two_windows(), "chrome", tmp_path / "t.json").files
    written = json.loads(path.read_text())["traceEvents"]

    def ids(category: str) -> list[tuple[float, int]]:
        return [(row["ts"], row["args"].get("correlation")) for row in written if row.get("cat") == category]

    assert ids("cuda_runtime") == [(1.01, 1), (1.02, 2), (2.01, 3), (2.02, 4)]
    assert ids("kernel") == [(1.03, 1), (1.05, 2), (1.07, None), (2.03, 3), (2.05, 4), (2.07, None)]
    arrows = [(row["ph"], row["id"]) for row in written if row.get("cat") == "ac2g"]
    assert sorted(arrows) == [("f", n) for n in (1, 2, 3, 4)] + [("s", n) for n in (1, 2, 3, 4)]
    assert activities(open_trace([path])) == [{"draft": 2, "verify": 2, "unattributed": 2}]


def whole(recording: Trace) -> list[list[Any]]:
    """Every column of every event in file order, but the correlation ids, which are numbered anew."""
    found = []
    for rank in recording.ranks():
        missing = [pl.lit(None, dtype=DTYPES[c]).alias(c) for c in COLUMN_NAMES if c not in rank.events.columns]
        events = rank.events.with_columns(missing).select(COLUMN_NAMES).drop("correlation")
        found.append([events.height, *(events[c].to_list() for c in events.columns)])
    return found


@pytest.mark.parametrize("sample", sorted(path.name for path in SAMPLES.glob("*.parquet")))
def test_a_recording_comes_back_whole(tmp_path: Path, sample: str) -> None:
    """Windows, cycles with their numbers and accepts, requests, nodes with their modules, and what was recorded about the recording."""
    recording = open_trace([SAMPLES / sample])
    again = open_trace(export(recording, "chrome", tmp_path / "t.json").files)
    assert whole(again) == whole(recording)
    assert again.warnings == recording.warnings
    before, after = break_down(recording), break_down(again)
    assert all(rank.windows > 1 for rank in before.ranks) or "61" in sample  # that one has a single window
    for one, other in zip(before.ranks, after.ranks, strict=True):
        for told in (
            "windows",
            "window_ns",
            "buckets_ns",
            "instances",
            "gpu_busy_ns",
            "hidden_comm_ns",
            "decided_ns",
            "node_map",
        ):
            assert getattr(one, told) == getattr(other, told)
        assert one.phase_instances.equals(other.phase_instances, null_equal=True)
    assert (before.waits is None) == (after.waits is None)
    for section in ("recording", "clock", "environment"):
        assert again.metadata[section] == recording.metadata[section]
    for entry, kept in zip(recording.metadata["ranks"], again.metadata["ranks"], strict=True):
        assert all(kept[name] == value for name, value in entry.items() if name != "row_groups")
    for rank in again.ranks():
        calls = rank.events.filter(pl.col("kind").cast(pl.String) == "launch").get_column("correlation").drop_nulls()
        assert calls.is_unique().all()
        assert calls.to_numpy().max() < 2**31


@pytest.mark.parametrize(
    ("sample", "ways"),
    [
        ("sglang_tp4_mla61_eagle3_steps2", {"by_id": 0, "by_stream": 39, "unsure": 4758}),
        ("sglang_v1_tp1_eagle3_steps2_cupti", {"by_id": 360, "by_stream": 0, "unsure": 0}),
        ("sglang_tp1_eagle3_steps2", {"by_id": 0, "by_stream": 0, "unsure": 0}),
    ],
)
def test_an_import_of_an_export_says_as_the_recording_does_how_replays_were_placed(
    tmp_path: Path, sample: str, ways: dict[str, int]
) -> None:
    recording = SAMPLES / f"{sample}.parquet"
    files = export(open_trace([recording]), "chrome", tmp_path / "t.json").files
    assert run(["import", *map(str, files), "-o", str(tmp_path / "again.parquet")]) == 0
    before, after = (break_down(open_trace([path])) for path in (recording, tmp_path / "again.parquet"))
    assert [rank.node_map for rank in after.ranks] == [rank.node_map for rank in before.ranks]
    assert {way: before.ranks[0].node_map[way] for way in ways} == ways
    assert [line for line in before.warnings if line not in after.warnings] == []


def without_member(path: Path) -> None:
    """Make an export what it was before windows were written down."""
    head, events = path.read_text().split(', "traceEvents": [', 1)
    kept = {name: value for name, value in json.loads(head + "}").items() if name != "specanalyze"}
    path.write_text(json.dumps(kept)[:-1] + ', "traceEvents": [' + events)


def test_an_old_export_of_several_windows_says_that_they_are_read_as_one(tmp_path: Path) -> None:
    files = export(open_trace([SAMPLES / "embedded_tp2.parquet"]), "chrome", tmp_path / "t.json").files
    for path in files:
        without_member(path)
    packed = tmp_path / "t.rank1.json.gz"
    packed.write_bytes(gzip.compress(files[1].read_bytes()))
    for given in (files, [files[0], packed]):
        assert [line for line in open_trace(given).warnings if "older specanalyze" in line] == [
            f"{path.name}: exported by an older specanalyze, which did not write windows down: its 2 profiler windows are read as one, and the "
            "time between them counts as host time; export the recording anew"
            for path in given
        ]


def test_an_old_export_of_one_window_says_nothing(tmp_path: Path) -> None:
    files = export(open_trace([SAMPLES / "embedded_tp2.parquet"]), "chrome", tmp_path / "t.json", cycles=(40, 44)).files
    without_member(files[0])
    assert unsaid_windows(files[0]) == 1
    assert not any("older" in line for line in open_trace(files[:1]).warnings)


def test_stretches_are_counted_over_pieces_of_the_text(tmp_path: Path) -> None:
    (path,) = export(open_trace([SAMPLES / "sglang_tp1_eagle3_steps2.parquet"]), "chrome", tmp_path / "t.json").files
    without_member(path)
    assert {unsaid_windows(path, chunk_bytes=size) for size in (1 << 14, 50_001, 1 << 23)} == {3}
    assert unsaid_windows(SAMPLES / "README.md") == 0


def test_one_rank_alone_says_that_others_were_there(tmp_path: Path) -> None:
    recording = open_trace([SAMPLES / "embedded_tp2.parquet"])
    files = export(recording, "chrome", tmp_path / "t.json").files
    alone = open_trace(files[1:])
    assert [source.key for source in alone.sources] == ["1"]
    assert [entry["rank"] for entry in alone.metadata["ranks"]] == [1, 0]
    assert whole(alone) == whole(recording)[1:]


def test_windows_that_starts_do_not_tell_apart_are_one_and_that_is_said(tmp_path: Path) -> None:
    rows = [
        row
        for window in (0, 1)
        for row in (
            phase("spec.verify", 1000 + window, 1100, window=window),
            launch("cudaLaunchKernel", 1010, 5 + window, window=window),
            kernel("flash_fwd_kernel", 1030 + window, 1040, 5 + window, window=window),
        )
    ]
    (path,) = export(trace(rank_trace(rows)), "chrome", tmp_path / "t.json").files
    again = open_trace([path])
    (rank,) = again.ranks()
    assert rank.events["window"].to_list() == [0] * 6
    assert (
        again.warnings
        == [
            "t.json names no rank (no distributedInfo): taken as rank 0",
            "t.json: its profiler windows are read as one, because the starts of its rows do not tell them apart",
        ][-len(again.warnings) :]
    )
    assert "read as one" in again.warnings[-1]


def test_work_outside_windows_and_late_work_keep_their_place(tmp_path: Path) -> None:
    """A kernel of window 0 runs after window 1 has begun; an operator lies in none."""
    rows = [
        phase("spec.verify", 1000, 1100, window=0),
        launch("cudaLaunchKernel", 1010, 5, window=0),
        kernel("flash_fwd_kernel", 2050, 2060, 5, window=0),
        {**phase("aten::mul", 1500, 1510), "kind": "op", "window": None},
        phase("spec.draft", 2000, 2100, window=1),
        launch("cudaLaunchKernel", 2010, 5, window=1),
        kernel("flash_fwd_kernel", 2070, 2080, 5, window=1),
    ]
    recording = trace(rank_trace(rows))
    assert next(recording.ranks()).events["window"].to_list() == [0, 0, 0, None, 1, 1, 1]
    (path,) = export(recording, "chrome", tmp_path / "t.json").files
    (rank,) = open_trace([path]).ranks()
    assert rank.events["window"].to_list() == [0, 0, 0, None, 1, 1, 1]
    assert activities(open_trace([path])) == activities(recording) == [{"draft": 1, "verify": 1}]


DAMAGES: list[tuple[str, Any, str]] = [
    ("version", None, "version"),
    ("version", "1", "version"),
    ("version", True, "version"),
    ("windows", "all", "windows"),
    ("windows", [[0]], "windows"),
    ("windows", [[0, 5], [1, 4]], "windows"),
    ("windows", [["x", 5]], "windows"),
    ("windows", [[0, 2**80]], "windows"),
    ("rows", [], "rows"),
    ("rows", {"unheard": [1]}, "rows"),
    ("rows", {"kind": {"values": ["kernel"], "codes": [0]}, "start_ns": [1]}, "rows"),
    ("rows", {"kind": {"values": ["cycle"], "codes": [1]}, "start_ns": [1]}, "rows"),
    ("rows", {"kind": {"values": ["cycle"], "codes": [0, 0]}, "start_ns": [1]}, "rows"),
    ("rows", {"kind": {"values": ["cycle"], "codes": [0]}, "start_ns": ["now"]}, "rows"),
    ("rows", {"kind": {"values": [7], "codes": [0]}, "start_ns": [1]}, "rows"),
    ("rows", {"kind": ["cycle"], "start_ns": [1]}, "rows"),
    ("rows", {"kind": {"values": ["cycle"], "codes": [0]}, "start_ns": {"values": ["cycle"], "codes": [0]}}, "rows"),
    ("rows", {"kind": {"values": ["cycle"], "codes": [0]}, "start_ns": [1], "accept_lengths": [["x"]]}, "rows"),
    ("at", None, "at"),
    ("at", [3], "at"),
    ("at", [0] * 8, "at"),
    ("at", list(range(7, -1, -1)), "at"),
    ("sections", [], "sections"),
    ("sections", {"recording": "{"}, "sections"),
    ("sections", {"recording": "[" * 100_000}, "sections"),
    ("sections", {"recording": '{"windows": 3}'}, "recording.windows"),
]


@pytest.mark.parametrize(("part", "value", "said"), DAMAGES, ids=[f"{p}-{n}" for n, (p, *_) in enumerate(DAMAGES)])
def test_a_damaged_member_is_one_line(
    tmp_path: Path, part: str, value: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = export(small(), "chrome", tmp_path / "t.json").files[0]
    document = json.loads(path.read_text())
    assert len(document["specanalyze"]["at"]) == 8
    document["specanalyze"][part] = value
    path.write_text(json.dumps(document))
    assert run(["breakdown", str(path)]) == 1
    error = capsys.readouterr().err
    assert (error.count("\n"), error.startswith("error: t.rank0.json: "), said in error) == (1, True, True), error


def test_a_newer_member_is_refused_by_its_number(tmp_path: Path) -> None:
    path = export(small(), "chrome", tmp_path / "t.json").files[0]
    document = json.loads(path.read_text())
    document["specanalyze"]["version"] = 2
    path.write_text(json.dumps(document))
    with pytest.raises(TraceError, match=r"newer specanalyze \(layout 2; this one reads up to 1\): update"):
        open_trace([path])


def test_a_member_beside_other_rows_still_gives_its_own(tmp_path: Path) -> None:
    """Somebody cut rows out of the file: what is left keeps its window, the order of the rest is that of the kinds."""
    path = export(small(), "chrome", tmp_path / "t.json").files[0]
    document = json.loads(path.read_text())
    document["traceEvents"] = [row for row in document["traceEvents"] if row.get("cat") != "kernel" or row["ts"] > 0.2]
    path.write_text(json.dumps(document))
    (rank,) = open_trace([path]).ranks()
    assert rank.events["window"].null_count() == 0
    kinds = rank.events["kind"].cast(pl.String).to_list()
    assert (kinds.count("kernel"), kinds.count("cycle"), kinds.count("phase"), kinds.count("launch")) == (2, 4, 4, 4)


def small() -> Trace:
    rows = []
    for n in range(4):
        at = n * 100
        rows += [
            phase("spec.cycle", at, at + 90, cycle=10 + n, window=0),
            phase("spec.verify", at + 5, at + 80, window=0),
            launch("cudaLaunchKernel", at + 10, n, window=0),
            kernel("flash_fwd_kernel", at + 85, at + 120, n, window=0),
        ]
    return trace(rank_trace(rows), rank_trace(rows, rank=1))


def test_cycles_keep_their_late_kernels(tmp_path: Path) -> None:
    done = export(small(), "chrome", tmp_path / "t.json", cycles=(11, 13))
    assert [path.name for path in done.files] == ["t.rank0.json", "t.rank1.json"]
    document = json.loads(done.files[0].read_text())
    assert document["baseTimeNanoseconds"] == 0
    kernels = [row for row in document["traceEvents"] if row.get("cat") == "kernel"]
    assert [(row["ts"], row["dur"], row["args"]["class"], row["args"]["phase"]) for row in kernels] == [
        (0.185, 0.035, "attention", "verify"),
        (0.285, 0.035, "attention", "verify"),
    ]


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="none of the cycles asked for; it has cycles 10 to 13"):
        export(small(), "chrome", tmp_path / "t.json", cycles=(20, 30))
    assert list(tmp_path.iterdir()) == []
    for name, to in (
        ("t.txt", "chrome"),
        ("t.json", "perfetto"),
        ("t.json", "nsys"),
        ("t.json", "other"),
        ("no/t.json", "chrome"),
    ):
        with pytest.raises(UsageError):
            export(small(), to, tmp_path / name)
    (tmp_path / "t.rank1.json").write_text("mine")
    with pytest.raises(UsageError, match=r"t\.rank1\.json exists"):
        export(small(), "chrome", tmp_path / "t.json")
    assert [path.name for path in tmp_path.iterdir()] == ["t.rank1.json"]
    export(small(), "chrome", tmp_path / "t.json", force=True)
    assert json.loads((tmp_path / "t.rank1.json").read_text())["distributedInfo"] == {"rank": 1}


def test_gzip_is_what_it_says(tmp_path: Path) -> None:
    (path, _) = export(small(), "chrome", tmp_path / "t.json.gz").files
    assert json.loads(gzip.decompress(path.read_bytes()))["displayTimeUnit"] == "ms"
