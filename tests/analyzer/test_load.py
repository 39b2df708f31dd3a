"""Opening recordings in every form: which files are ranks of one recording, and what is refused."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from specanalyze.formats.load import open_trace
from specanalyze.formats.recordings import host_in_name, rank_in_name, recording_in_name
from specanalyze.formats.trace_files import write_trace
from specanalyze.trace import Trace
from specschema.errors import SpecError, TraceError, UsageError

CASES = Path(__file__).parents[1] / "cases"


def read(*paths: Path, **options: Any) -> tuple[Trace, dict[str, pl.DataFrame]]:
    trace = open_trace(list(paths), **options)
    return trace, {rank.key: rank.events for rank in trace.ranks()}


def mentions(line: str, words: list[str]) -> bool:
    """``a|b`` stands for one of them (RULES R10)."""
    return all(any(word.lower() in line.lower() for word in either.split("|")) for either in words)


def expected(case: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((CASES / case / "expected.json").read_text())
    return document


_READABLE = sorted(
    path.parent.name
    for path in CASES.glob("*/expected.json")
    if json.loads(path.read_text())["expect"] in ("result", "either")
    and "nsys" not in path.parent.name
    and path.parent.name.split("-")[0] not in ("13", "20")
)


@pytest.mark.parametrize("case", _READABLE)
def test_case_has_the_ranks_expected(case: str) -> None:
    document = expected(case)
    for named in document["input"] if document.get("separate_inputs") else [""]:
        trace, ranks = read(CASES / case / named)
        assert list(ranks) == sorted(document["ranks"])
        assert [source.key for source in trace.sources] == list(ranks)


@pytest.mark.parametrize(
    ("case", "file"),
    [
        ("11-two-recordings-in-one-folder", ""),
        ("20-unescaped-quotes-in-name", "trace.json"),
        ("23-truncated-files", "cut.trace.json"),
        ("23-truncated-files", "cut.trace.json.gz"),
        ("23-truncated-files", "empty.trace.json"),
        ("27-cpu-only-trace", "trace.json"),
        ("43-parquet-truncated", ""),
        ("45-parquet-newer-schema", "kernels.rank0.parquet"),
    ],
)
def test_refusal_is_one_line_with_the_words_expected(case: str, file: str) -> None:
    with pytest.raises(SpecError) as refusal:
        read(CASES / case / file if file else CASES / case)
    line = str(refusal.value)
    assert mentions(line, expected(case)["must_mention"]), line
    assert "\n" not in line
    assert file in line


def test_two_recordings_are_named() -> None:
    with pytest.raises(TraceError) as refusal:
        open_trace([CASES / "11-two-recordings-in-one-folder"])
    assert str(refusal.value) == (
        "two recordings in folder 11-two-recordings-in-one-folder: ranks 0 and 1 appear twice (1756600000.1 and 1756603600.7); "
        "choose one: give the files of one recording"
    )


def test_files_of_one_recording_are_chosen_by_giving_them() -> None:
    folder = CASES / "11-two-recordings-in-one-folder"
    _, ranks = read(*sorted(folder.glob("1756603600.7-*")))
    assert list(ranks) == ["0", "1"]


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("13-no-distributed-info/trace.json", ["trace.json", "rank"]),
        ("19-backslash-paths-invalid-escape", ["escape"]),
        ("22-inf-nan-in-args", ["inf"]),
        ("26-top-level-list", ["rank"]),
    ],
)
def test_case_is_read_with_the_warning_expected(case: str, words: list[str]) -> None:
    trace, ranks = read(CASES / case)
    assert list(ranks) == ["0"]
    assert len(trace.warnings) == 1
    assert mentions(trace.warnings[0], words)


def test_repaired_file_has_the_events_of_the_clean_one() -> None:
    _, clean = read(CASES / "28-annotation-overhead-sync-rows")
    work = ["kernel"]
    columns = ["name", "start_ns", "dur_ns", "correlation", "stream"]
    _, repaired = read(CASES / "19-backslash-paths-invalid-escape")
    assert repaired["0"].filter(pl.col("kind").is_in(work)).select(columns).rows() == (
        clean["0"].filter(pl.col("kind").is_in(work)).select(columns).rows()
    )


def test_broken_row_is_left_out_by_salvage() -> None:
    case = CASES / "20-unescaped-quotes-in-name"
    trace, ranks = read(case, salvage=True)
    assert trace.warnings == ["trace.json: 1 broken row left out"]
    assert dict(ranks["0"]["kind"].cast(pl.String).value_counts().rows()) == {
        "phase": 1,
        "launch": 1,
        "kernel": 4,
        "mark": 2,
    }


def test_cut_file_is_read_by_salvage_with_what_was_lost() -> None:
    trace, ranks = read(CASES / "23-truncated-files/cut.trace.json", salvage=True)
    assert trace.warnings == [
        "cut.trace.json ends early: everything up to byte 2547 was read; 336 bytes of a cut row and all that should follow are lost"
    ]
    assert ranks["0"].filter(pl.col("kind") == "kernel").height == 2


def test_absolute_times_and_exact_nanoseconds() -> None:
    _, ranks = read(CASES / "16-nanoseconds-lost-in-float64")
    kernels = ranks["0"].filter(pl.col("kind") == "kernel")
    t0 = 1718233344455500_000
    assert kernels.select(pl.col("start_ns") - t0, "dur_ns").rows() == [(83412, 640), (84053, 705), (84759, 5100)]


def test_base_time_is_added_and_the_display_unit_is_not_used() -> None:
    _, ranks = read(CASES / "18-base-time-and-display-unit")
    starts = {key: events.filter(pl.col("kind") == "phase")["start_ns"][0] for key, events in ranks.items()}
    assert starts == {"0": 1779468135790000000, "1": 1779468135790000000}


def test_hosts_by_file_name() -> None:
    trace = open_trace([CASES / "09-clock-skew-two-hosts"])
    assert {rank.key: rank.host for rank in trace.ranks()} == {"0": "nodeA", "1": "nodeB"}


def test_world_size_and_groups_behind_the_events() -> None:
    trace = open_trace([CASES / "14-metadata-after-events"])
    assert [(rank.key, rank.world_size) for rank in trace.ranks()] == [("1", 2)]
    assert trace.metadata["ranks"][0]["process_groups"] == [{"name": "0", "description": "default_pg", "ranks": [0, 1]}]
    assert trace.metadata["environment"] == {
        "gpu": ["NVIDIA H200"],
        "gpu_count": 2,
        "gpu_memory_bytes": [150110011392],
        "cuda_driver": 13000,
        "cuda_runtime": 12090,
        "cupti": 26,
    }


def test_huge_ids() -> None:
    _, ranks = read(CASES / "47-huge-ids")
    kernels = ranks["0"].filter(pl.col("kind") == "kernel")
    assert kernels["correlation"].to_list() == [5, 4294967301, 4294967301]
    assert kernels["seq"].to_list() == [None, None, 3000000001]


def test_trace_of_a_cpu_is_read_when_asked_for() -> None:
    trace = open_trace([CASES / "27-cpu-only-trace"], device="cpu")
    (rank,) = trace.ranks()
    assert rank.device == "cpu"
    assert trace.metadata["recording"]["device"] == "cpu"
    with pytest.raises(UsageError, match="device 'tpu' is not known: cpu or cuda"):
        open_trace([CASES / "27-cpu-only-trace"], device="tpu")


def test_tables_of_a_rank_go_on_without_the_damaged_ones() -> None:
    trace, ranks = read(CASES / "43-parquet-truncated", salvage=True)
    assert list(ranks) == ["0"]
    busy = ranks["0"].group_by(pl.col("op").cast(pl.String)).agg(pl.len(), pl.col("dur_ns").sum())
    assert sorted(busy.rows(), key=str) == [("allreduce", 200, 4_000_000), (None, 200, 10_000_000)]
    assert ranks["0"].select("kind", "name", "start_ns", "stream", "node").row(0) == (
        "kernel",
        "fused_moe_kernel",
        102000,
        7,
        9,
    )
    assert len(trace.warnings) == 1
    assert mentions(trace.warnings[0], ["rank1", "rank2", "rank3", "read: rank 0"])


def test_folder_may_hold_other_files_and_a_trace_without_a_rank(tmp_path: Path) -> None:
    """RULES R9: a file without GPU rows and without a rank is no rank when others have both."""
    shutil.copytree(CASES / "49-dp-attention-idle-cycles", tmp_path, dirs_exist_ok=True)
    scheduler = [{"ph": "X", "cat": "cpu_op", "name": "poll", "pid": 1, "tid": 1, "ts": 1, "dur": 1}]
    (tmp_path / "scheduler.json.gz").write_bytes(gzip.compress(json.dumps({"traceEvents": scheduler}).encode()))
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "result.parquet")
    trace, ranks = read(tmp_path)
    assert list(ranks) == ["0", "1"]
    assert trace.warnings == ["scheduler.json.gz: no rank and no GPU rows, so it is no rank of this recording"]


def test_content_counts_and_not_the_name(tmp_path: Path) -> None:
    zipped = tmp_path / "rank2.json"
    zipped.write_bytes(gzip.compress((CASES / "13-no-distributed-info/trace.json").read_bytes()))
    assert list(read(zipped)[1]) == ["2"]
    renamed = tmp_path / "copy.json"
    write_trace(open_trace([zipped]), renamed)
    assert list(read(renamed)[1]) == ["2"]


def test_progress_ends_at_the_size_of_the_files() -> None:
    seen: list[tuple[int, int]] = []
    folder = CASES / "07-cross-rank-wait-custom-allreduce"
    trace = open_trace([folder], progress=lambda done, total: seen.append((done, total)))
    for _ in range(2):  # a rank read twice counts once
        list(trace.ranks())
    size = sum(path.stat().st_size for path in folder.glob("*.trace.json"))
    assert seen[-1] == (size, size)
    assert max(done for done, _ in seen) == size


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "none.json", r"none\.json: no such file or folder"),
        (lambda folder: folder, r"holds no trace: no \.json, \.json\.gz or \.parquet file in it"),
    ],
)
def test_usage_errors(tmp_path: Path, make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_trace([make(tmp_path)])


def test_folder_without_a_trace_names_what_it_holds() -> None:
    with pytest.raises(TraceError, match=r"^none of expected\.json is a trace"):
        open_trace([CASES / "41-accept-length-bonus-and-eos"])


def test_single_file_that_is_no_trace() -> None:
    with pytest.raises(TraceError, match=r"^expected\.json has no traceEvents"):
        open_trace([CASES / "27-cpu-only-trace/expected.json"])


def test_two_forms_in_one_folder_are_not_mixed(tmp_path: Path) -> None:
    shutil.copy(CASES / "26-top-level-list/trace.json", tmp_path / "rank0.json")
    write_trace(open_trace([tmp_path]), tmp_path / "trace.parquet")
    with pytest.raises(UsageError, match=re.escape("holds both trace.parquet and torch.profiler files (rank0.json)")):
        open_trace([tmp_path])


@pytest.mark.parametrize(
    ("name", "rank", "recording", "host"),
    [
        ("1756600000.1-TP-3.trace.json.gz", 3, "1756600000.1", None),
        ("1756600000.1-TP-0-DP-1.trace.json", 0, "1756600000.1", None),
        ("e2_m17_rank12.json.gz", 12, "e2_m17", None),
        ("hta_128rank_sampled_rank-1.json.gz", 1, "hta_128rank_sampled", None),
        ("rank0.pt.trace.json", 0, "rank0.pt.trace.json", None),
        ("kernels.rank0.parquet", 0, "kernels", None),
        ("nodeA_700.1790000000000000000.pt.trace.json", None, "nodeA_700.1790000000000000000", "nodeA"),
        ("gpu-node_7_41.pt.trace.json.gz", None, "gpu-node_7_41", "gpu-node_7"),
        ("nodeA_700.trace.json", None, "nodeA_700", "nodeA"),
        ("nodeA_700.json.gz", None, "nodeA_700", "nodeA"),
        ("rank0_1.json", 0, "1", None),
        ("node_7.tar", None, "node_7.tar", None),
        ("HTTP-1.json", None, "HTTP-1", None),
        ("trace.json", None, "trace", None),
    ],
)
def test_file_names(name: str, rank: int | None, recording: str, host: str | None) -> None:
    assert (rank_in_name(name), recording_in_name(name), host_in_name(name)) == (rank, recording, host)
