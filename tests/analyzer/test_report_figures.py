"""Every figure on the page is the one that the command of its section prints as JSON, on three recordings of real servers."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("altair", reason="the report needs altair, vl-convert-python and jinja2")
pytest.importorskip("vl_convert", reason="the report needs altair, vl-convert-python and jinja2")

from specanalyze.cli import run
from specanalyze.formats.load import open_trace
from specanalyze.report.breakdown_bars import SLICES, breakdown_section
from specanalyze.report.page import Report, build_report
from specanalyze.report.palette import shown_as
from specanalyze.report.recorded import record
from specanalyze.report.section import Figure, Section
from specschema.figures import change, percent, signed

SAMPLES = Path(__file__).parents[2] / "samples"
RECORDINGS = {
    "sglang_tp2_eagle3_steps2": "sglang_tp2_plain",
    "sglang_v1_tp1_eagle3_steps2": None,
    "embedded_tp2": None,
}
"""Sample -> its baseline."""

Ask = Callable[..., Any]


def sample(name: str) -> str:
    return str(SAMPLES / f"{name}.parquet")


@pytest.fixture(scope="module", params=RECORDINGS)
def recording(request: pytest.FixtureRequest) -> tuple[str, str | None]:
    name: str = request.param
    return name, RECORDINGS[name]


@pytest.fixture(scope="module")
def page(recording: tuple[str, str | None]) -> Report:
    name, baseline = recording
    plain = None if baseline is None else open_trace([Path(sample(baseline))])
    return build_report([open_trace([Path(sample(name))])], baseline=plain)


@pytest.fixture(scope="module")
def ask(recording: tuple[str, str | None]) -> Ask:
    """Asks a command for its JSON, each question once."""
    answers: dict[tuple[str, ...], Any] = {}

    def asked(command: str, *more: str) -> Any:
        words = (command, sample(recording[0]), *more, "--json")
        if words not in answers:
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
                assert run(list(words)) == 0
            answers[words] = json.loads(out.getvalue())
        return answers[words]

    return asked


def section(report: Report, key: str) -> Section:
    return next(s for s in report.sections if s.key == key)


def mine(figures: tuple[Figure, ...], name: str) -> list[Figure]:
    return [f for f in figures if f.title.startswith(f"{name}:")]


def ms(ns: float) -> str:
    return f"{ns / 1e6:.3f}"


def test_headline(page: Report, ask: Ask, recording: tuple[str, str | None]) -> None:
    card = page.headlines[0]
    diagnosis, accepts, overhead = ask("diagnose"), ask("accept"), ask("overhead")
    assert card.tok_s == f"{diagnosis['tokens_per_second']:.1f}"
    assert card.cycle == f"{diagnosis['cycle_ns'] / 1e6:.2f}"
    assert card.accept_length == f"{accepts['accept_length']:.2f}"
    assert card.observing == f"{change(overhead['effect']['value'])} a cycle"
    assert f"median of {ask('phases')['untraced']['cycles']} untraced cycles" in card.clock
    if recording[1] is None:
        return
    weighed = ask("breakeven", "--baseline", sample(recording[1]))
    assert card.tok_s == f"{weighed['tok_s']:.1f}"
    assert page.headlines[1].tok_s == f"{weighed['baseline_tok_s']:.1f}"
    assert page.headlines[1].cycle == f"{weighed['baseline_step']['median_ns'] / 1e6:.2f}"
    share = weighed["won_tok_s"] / weighed["baseline_tok_s"]
    assert f"{percent(abs(share), 0)} {'more' if share > 0 else 'less'} tok/s" in card.verdict
    assert f"accept length {weighed['pays_at']:.2f}" in card.verdict


def test_breakdown(page: Report, ask: Ask, recording: tuple[str, str | None]) -> None:
    """A bucket's mean a wholly recorded instance; all instances of these samples are whole."""
    ranks = ask("breakdown", "--phase", "verify")["ranks"]
    (figure,) = section(page, "breakdown").figures
    rows = {(r[0], r[2]): r[3] for r in figure.table.rows}
    shown = 0
    for key, rank in ranks.items():
        verify = rank["phases"]["verify"]
        assert rank["coverage"]["graph_launches"] == rank["coverage"]["with_gpu_records"]
        buckets = dict(verify["buckets_ns"]) | {"graph_launch": verify["graph_launch_ns"]}
        buckets["launch"] = buckets.get("launch", 0) - verify["graph_launch_ns"]
        who = f"{recording[0]} · rank {key}"
        for slice_, name in SLICES:
            if ns := buckets.get(slice_, 0):
                assert rows[who, name] == ms(ns / verify["instances"])
                shown += 1
        assert rows[who, "total"] == ms(verify["total_ns"] / verify["instances"])
    assert shown > 8


def test_waits(page: Report, ask: Ask, recording: tuple[str, str | None]) -> None:
    found = section(page, "waits")
    answer = ask("ranks")
    if len(answer["ranks"]) == len({r["phase"] for r in answer["ranks"]}):  # one rank
        assert found.figures == ()
        assert "one rank" in found.missing[0]
        return
    instances = {
        k: r["phases"]["verify"]["instances"] for k, r in ask("breakdown", "--phase", "verify")["ranks"].items()
    }
    (figure,) = mine(found.figures, recording[0])
    expected = [
        [
            r["rank"],
            ms(r["wait_ns"] / instances[r["rank"]]),
            ms(r["transfer_ns"] / instances[r["rank"]]),
            f"{r['wait_ns'] / (r['wait_ns'] + r['transfer_ns']) * 100:.1f} %",
            f"{r['late']} of {r['collectives']}",
            str(r["collectives"]),
            str(answer["wait"]["unmatched_kernels"][r["rank"]]),
        ]
        for r in answer["ranks"]
        if r["phase"] == "verify"
    ]
    assert figure.table.rows == expected


def test_layers(page: Report, ask: Ask, recording: tuple[str, str | None]) -> None:
    found = section(page, "layers")
    answer = ask("layers")
    figures = mine(found.figures, recording[0])
    modules = figures[-1].table.rows
    assert [(r[0], r[1], r[5], r[6]) for r in modules] == [
        (m["rank"], m["module"] or "(no module)", ms(m["exposed_ns"]), ms(m["gap_before_ns"]))
        for m in answer["modules"]
    ]
    assert f"{answer['placed']} of {answer['replays']} replays" in found.notes[0]
    assert f"{ms(answer['unplaced_ns'])} ms" in found.notes[0]
    layers = answer["layers"]
    if len(figures) == 3:  # several ranks
        expected = [
            (r["rank"], str(r["layer"]), f"{r['total_ns'] / 1e3:.1f}", f"{r['communication_ns'] / 1e3:.1f}")
            for r in layers
        ]
        assert [tuple(r[:4]) for r in figures[1].table.rows] == expected
    ranks = len({r["rank"] for r in layers})
    by_layer = {
        n: sum(r["total_ns"] for r in layers if r["layer"] == n) / ranks / 1e3 for n in {r["layer"] for r in layers}
    }
    for row in figures[0].table.rows:
        assert sum(map(float, row[1:])) == pytest.approx(by_layer[int(row[0])], abs=0.05 * len(row))


def test_acceptance(page: Report, ask: Ask, recording: tuple[str, str | None]) -> None:
    (figure,) = section(page, "acceptance").figures
    expected = [
        [
            recording[0],
            str(r["position"]),
            str(r["proposed"]),
            str(r["reached"]),
            str(r["accepted"]),
            *("–" if r[c] is None else f"{r[c] * 100:.1f} %" for c in ("conditional", "cumulative")),
        ]
        for r in ask("accept")["by_position"]
    ]
    assert figure.table.rows == expected
    assert f"accept length {ask('accept')['accept_length']:.3f}" in section(page, "acceptance").notes[0]


def test_cycle_times(page: Report, ask: Ask, recording: tuple[str, str | None]) -> None:
    spread = mine(section(page, "cycle-times").figures, recording[0])[1].table
    rows = {r[0]: r for r in spread.rows}
    for kind in ("untraced", "traced"):
        pace = ask("phases")[kind]
        assert rows[kind][1] == str(pace["cycles"])
        assert rows[kind][3:6] == [ms(pace["step_ns"][q]) for q in ("p10", "median", "p90")]


def test_findings(page: Report, ask: Ask, recording: tuple[str, str | None]) -> None:
    more = () if recording[1] is None else ("--baseline", sample(recording[1]))
    answer = ask("diagnose", *more)
    (shown,) = page.findings
    assert [(f.rule, f.title, list(f.evidence), f.knob) for f in shown.found] == [
        (f["rule"], f["title"], f["evidence"], f["knob"]) for f in answer["findings"]
    ]
    for card, finding in zip(shown.found, answer["findings"], strict=True):
        if (win := finding["win_ms_per_token"]) is not None:
            assert card.win == f"up to {win:.2f} ms a token"
    assert list(shown.clean) == answer["clean"]
    assert dict(shown.not_checked) == answer["not_checked"]


def test_changes(page: Report, ask: Ask, recording: tuple[str, str | None]) -> None:
    found = section(page, "changes")
    if recording[1] is None:
        assert found.figures == ()
        return
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        assert run(["compare", sample(recording[1]), sample(recording[0]), "--json"]) == 0
    answer = json.loads(out.getvalue())
    (figure,) = found.figures
    assert [(r[2], r[3], r[4], r[7]) for r in figure.table.rows] == [
        (ms(r["before_ns"]), ms(r["after_ns"]), signed(r["change_ns"] / 1e6), r["verdict"]) for r in answer["table"]
    ]
    assert [r[0] for r in figure.table.rows][:2] == ["whole cycle", shown_as("verify")]


def test_environment(page: Report, ask: Ask) -> None:
    answer = ask("env")["environment"]
    told = {f.name: f.values[0] for f in (*page.facts, *page.more_facts)}
    assert told["driver"] == answer["driver"]
    assert told["torch"] == answer["torch"]
    for name, value in answer.get("variables", {}).items():
        if name in told:
            assert told[name] == value


def test_no_word_of_an_estimate_that_is_withheld() -> None:
    """Replays without records make busy time look idle, so nothing was scaled; the note told of the estimate all the same."""
    trace = open_trace([SAMPLES / "sglang_tp4_mla61_eagle3_steps2.parquet"])
    drawn = breakdown_section([record(trace, "of 61 layers")])
    (note,) = [line for line in drawn.notes if line.startswith("of 61 layers")]
    assert "observing changed the cycle by" in note
    assert note.endswith("no calibrated times: graph replays without device records make busy time look idle.")
    assert "the estimate" not in note
    whole = breakdown_section([record(open_trace([SAMPLES / "sglang_tp2_plain.parquet"]), "plain")])
    assert "the estimate scales them together" in " ".join(whole.notes)
