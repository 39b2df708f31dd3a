"""The phase table: device and host views, other, and the reasons why they differ."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import traces

from specanalyze.answers.phases_report import phase_report, phases_frame, phases_json
from specanalyze.answers.request_table import request_table
from specanalyze.cli import run
from specanalyze.render.phases import draw
from specanalyze.trace import RankTrace
from specschema.errors import TraceError, UsageError
from specschema.phases import BUCKETS

GEMM = "nvjet_tst_128x64_64x9_1x2_h_bz_coopA_TNT"
MS = 1_000_000


def cycle(number: int, at: int, window: int | None, accept: int = 2) -> list[dict[str, Any]]:
    """A cycle of 10 ms: the host is 1 + 2 + 1 ms in its phases, the device works 1 + 5 + 2 ms of it, one after the other."""

    def stretch(name: str, begin: int, end: int) -> dict[str, Any]:
        return traces.phase(name, at + begin * MS, at + end * MS, cycle=number, window=window)

    rows = [
        {
            **stretch("spec.cycle", 0, 5),
            "mode": "speculative",
            "request_ids": ["a"],
            "batch_size": 1,
            "draft_tokens": 2,
            "accept_lengths": [accept],
            "accepted_draft_tokens": [accept - 1],
        },
        stretch("spec.draft", 0, 1),
        stretch("spec.verify", 1, 3),
        stretch("spec.draft_extend", 3, 4),
    ]
    if window is not None:
        for n, (call, begin, end) in enumerate(((0, 0, 1), (1, 1, 6), (3, 6, 8))):
            name = ("cudaLaunchKernel", "cudaGraphLaunch", "cudaLaunchKernel")[n]
            rows.append(traces.launch(name, at + call * MS, 10 * number + n, window=window))
            rows.append(traces.kernel(GEMM, at + begin * MS, at + end * MS, 10 * number + n, window=window))
    return rows


def rank(number: int = 0, traced: int = 3, untraced: int = 4) -> RankTrace:
    rows = [row for n in range(untraced) for row in cycle(n, n * 8 * MS, None, accept=1 + n % 3)]
    begin = untraced * 8 * MS
    rows += [row for n in range(traced) for row in cycle(untraced + n, begin + n * 10 * MS, 0)]
    return traces.rank_trace(rows, rank=number)


def means(frame: pl.DataFrame, view: str) -> dict[str, float]:
    rows = frame.filter(pl.col("view") == view, pl.col("rank") == "0")
    return {row["phase"]: row["mean_ns"] / MS for row in rows.to_dicts()}


def test_the_three_views() -> None:
    report = phase_report(traces.trace(rank(0), rank(1)))
    frame = phases_frame(report)
    # W runs from the first range to the last activity: 28 ms for three cycles; 2 ms idle between them, twice
    assert means(frame, "device") == pytest.approx(
        {"draft": 1, "verify": 5, "draft_extend": 2, "other": 4 / 3, "total": 28 / 3}
    )
    assert means(frame, "host") == {"draft": 1, "verify": 2, "draft_extend": 1, "other": 6, "total": 10}
    assert means(frame, "untraced") == {"draft": 1, "verify": 2, "draft_extend": 1, "other": 4, "total": 8}
    device = frame.filter(pl.col("view") == "device", pl.col("rank") == "1").to_dicts()
    assert [row["phase"] for row in device] == ["draft", "verify", "draft_extend", "other", "total"]
    assert sum(row["share"] for row in device[:-1]) == pytest.approx(1)
    assert sum(row["total_ns"] for row in device[:-1]) == device[-1]["total_ns"] == 28 * MS
    assert device[3]["median_ns"] == 2 * MS  # between one cycle's work and the next cycle's start
    assert report.counted == ["0"]
    assert report.accept_length == pytest.approx((1 + 2 + 3 + 1 + 2 + 2 + 2) / 7)


def test_untraced_cycles_are_the_clock() -> None:
    report = phase_report(traces.trace(rank()))
    assert report.pace is report.untraced
    assert report.untraced.cycles == 3
    assert report.untraced.tok_s == pytest.approx(6 / 0.024)
    assert report.traced.tok_s == pytest.approx(4 / 0.020)
    notes = "\n".join(report.notes)
    assert "a cycle takes 10.00 ms inside the windows and 8.00 ms outside (+25 %)" in notes
    assert (
        "verify, rank 0: the device timeline gives it 5.00 ms a cycle, the host is in it 2.00 (medians of traced cycles): launches are asynchronous"
        in notes
    )
    alone = phase_report(traces.trace(rank(untraced=0)))
    assert any("every cycle was traced" in note for note in alone.notes)
    assert alone.pace is alone.traced


def test_device_work_that_outlives_its_cycle_is_named() -> None:
    rows = [
        row for n in range(3) for row in cycle(n, n * 7 * MS, 0)
    ]  # the re-extend ends 1 ms after the next cycle begins
    report = phase_report(traces.trace(traces.rank_trace(rows)))
    assert report.cycles["runs_over"].to_list() == [True, True, None]
    assert any(
        "in 2 of 2 traced cycles the device still worked when the host began the next one" in n for n in report.notes
    )


@pytest.mark.parametrize(("traced", "disturbed", "clock"), [(3, 0, "traced"), (0, 4, "disturbed"), (3, 4, "traced")])
def test_a_requests_times_are_of_one_kind_of_cycles(traced: int, disturbed: int, clock: str) -> None:
    """Cycles beside a window are neither untraced nor traced, and never called either."""
    report = phase_report(traces.trace(rank(traced=traced, untraced=disturbed)))
    report = replace(report, cycles=report.cycles.with_columns(control=pl.lit(value=False)))
    (only,) = request_table(report).to_dicts()
    assert (only["clock"], only["traced"]) == (clock, True)
    assert only["cycles"] == (traced or disturbed) - 1


def test_cycles_and_requests() -> None:
    report = phase_report(traces.trace(rank()))
    by_cycle = phases_frame(report, "cycle").filter(pl.col("window") == 0)
    assert by_cycle["device_verify_ns"].to_list() == [5 * MS] * 3
    assert by_cycle["host_other_ns"].to_list() == [6 * MS, 6 * MS, None]
    only = request_table(report).to_dicts()[0]
    assert (only["request"], only["traced"], only["cycles"], only["tokens"]) == ("a", False, 3, 6)
    assert only["clock"] == "untraced"
    assert only["tok_s"] == pytest.approx(6 / 0.024)
    assert (only["step_median_ns"], only["verify_ns"], only["other_ns"]) == (8 * MS, 2 * MS, 4 * MS)
    assert only["accept_length"] == pytest.approx(13 / 7)
    with pytest.raises(UsageError, match="cannot split by 'layer'"):
        phases_frame(report, "layer")


def test_a_recording_without_requests_says_so() -> None:
    rows = [traces.phase("spec.cycle", 0, 5), traces.phase("spec.decode", 0, 2), traces.phase("spec.cycle", 9, 12)]
    report = phase_report(traces.trace(traces.rank_trace(rows)))
    with pytest.raises(TraceError, match="does not say which requests"):
        request_table(report)
    assert phases_json(report)["requests"] == []


def test_device_totals_are_the_partition_of_real_traces(reference: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = reference / "traces/sglang_h200/tp2"
    files = [str(folder / f"e2_m17_rank{n}.json.gz") for n in (0, 1)]
    assert run(["phases", *files, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert run(["breakdown", *files, "--phase", "all", "--json"]) == 0
    exact = json.loads(capsys.readouterr().out)["ranks"]
    for key in ("0", "1"):
        phases = printed["ranks"][key]["device"]["phases"]
        assert phases["total"]["total_ns"] == exact[key]["window_ns"]
        for name in ("draft", "verify", "draft_extend"):
            assert phases[name]["total_ns"] == sum(exact[key]["phases"][name]["buckets_ns"].values())
        assert sum(row["total_ns"] for name, row in phases.items() if name != "total") == exact[key]["window_ns"]
    assert printed["clock"] == "untraced"
    assert printed["covers"]["accept_length"] == "all verify steps on record, traced and untraced"
    assert printed["accept_length"] == 2.0
    assert printed["untraced"]["tok_s"] == pytest.approx(250.8, abs=0.1)
    for words in (["--by", "cycle"], ["--by", "rank"]):
        assert run(["phases", *files, *words]) == 0
        assert "verify" in capsys.readouterr().out


def test_a_phase_instance_keeps_all_its_buckets() -> None:
    report = phase_report(traces.trace(rank()))
    instances = report.breakdown["0"].phase_instances.filter(pl.col("phase") == "verify")
    assert instances.select(pl.sum_horizontal(*BUCKETS)).to_series().to_list() == [5 * MS] * 3


def test_the_untraced_column_says_that_it_is_the_host_view(capsys: pytest.CaptureFixture[str]) -> None:
    report = phase_report(traces.trace(rank()))
    draw(report, phases_frame(report), "rank")
    lines = capsys.readouterr().out.splitlines()
    assert "host view," in lines[1]
    assert lines[2].split()[-3:] == ["host", "view", "untraced"]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (cycle(0, 0, 0), "one decode cycle is on record, and a step lasts until the next one begins"),
        ([*cycle(0, 0, 0), *cycle(9, 90 * MS, 0)], "no two of the 2 decode cycles on record follow each other"),
        (
            [{**traces.phase("spec.cycle", 0, 5, cycle=0), "mode": "prefill"}, traces.phase("spec.prefill", 0, 4)],
            "none of the 1 cycle on record decodes",
        ),
    ],
    ids=["one", "apart", "prefill"],
)
def test_no_empty_table_of_speed(rows: list[dict[str, Any]], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It showed a title, headings and no row."""
    report = phase_report(traces.trace(traces.rank_trace(rows)))
    assert report.pace.cycles == 0
    draw(report, phases_frame(report), "rank")
    shown = " ".join(capsys.readouterr().out.split())
    assert "median ms" not in shown
    assert f"· speed is unknown (tok/s, inter-token latency): {why}" in shown
    assert "give a log of cycles with --cycles FILE" in shown
    assert ("accept length 2.000" in shown) == (report.accept_length == 2)
