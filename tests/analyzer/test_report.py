"""The report's content: figures of the sections, what is said where data lack, and the page as a file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import story
import traces
from story import MS

pytest.importorskip("altair", reason="the report needs altair, vl-convert-python and jinja2")
pytest.importorskip("vl_convert", reason="the report needs altair, vl-convert-python and jinja2")

from specanalyze.diagnosis.diagnosis_rules import RULES
from specanalyze.report.breakdown_bars import SLICES
from specanalyze.report.findings import OTHERWISE, PLOTS
from specanalyze.report.page import MOST_BYTES, Report, build_report, to_html
from specanalyze.report.palette import COLOURS
from specanalyze.report.recorded import labels
from specanalyze.report.section import MOST_ROWS, Figure, Section
from specanalyze.trace import Trace
from specschema.errors import TraceError
from specschema.install_line import install_line


def section(report: Report, key: str) -> Section:
    return next(s for s in report.sections if s.key == key)


def values(figure: Figure) -> list[dict[str, Any]]:
    """All data rows of a plot."""
    assert figure.spec is not None
    return [row for rows in figure.spec["datasets"].values() for row in rows]


@pytest.fixture(scope="module")
def eagle() -> Report:
    """27.28 ms a cycle at accept length 1.937 on four ranks, one of them late; plain decoding takes 15.9 ms a step."""
    recording = story.first_recording(ranks=4, lag_ns={2: 20_000}, observer_ns=3 * MS)
    baseline = story.baseline_recording(15_900_000, False, ranks=4)
    return build_report([recording.trace()], baseline=baseline.trace())


def test_headline_and_verdict(eagle: Report) -> None:
    first, base = eagle.headlines
    assert (first.label, first.tok_s, first.accept_length, first.cycle) == ("eagle", "71.0", "1.94", "27.28")
    assert first.observing == "+11 % a cycle"
    assert (base.baseline, base.tok_s, base.cycle) == (True, "62.9", "15.90")
    assert first.tone == "good"
    assert first.verdict.startswith(
        "Speculation pays: 13 % more tok/s than the baseline; break-even is at accept length 1.72, 1.94 was reached"
    )


def test_one_speed_a_card_and_what_it_is_made_of(eagle: Report) -> None:
    """A mean and a median tok/s used to stand on one card, without a word which was which."""
    html = to_html(eagle)
    for card, headline in zip(
        re.findall(r'(?s)<div class="card">.*?<p class="small">.*?</p>.*?</p>', html), eagle.headlines, strict=True
    ):
        assert re.findall(r"[\d.]+(?= tok/s)|(?<=tok/s a request</dt><dd>)[\d.]+", card) == [headline.tok_s]
    first, base = eagle.headlines
    assert first.clock == "tok/s = accept length / median of 979 untraced cycles"
    assert base.clock.startswith("tok/s = one token / median of ")
    assert float(first.tok_s) == pytest.approx(1000 * float(first.accept_length) / float(first.cycle), rel=0.003)
    assert first.together == ""


def test_a_batch_also_says_the_speed_of_all_its_requests() -> None:
    """Eight requests at a time: the card's tok/s is one request's."""
    (headline,) = build_report([story.first_recording(batch_size=8).trace()]).headlines
    together = re.fullmatch(r"all requests together: ([\d.]+) tok/s, over all cycles", headline.together)
    assert together is not None
    assert float(together[1]) == pytest.approx(8 * float(headline.tok_s), rel=0.02)


def test_bars_sum_to_the_phase(eagle: Report) -> None:
    """One measured bar a rank of each recording, and the estimate beside it: 26.07 ms verify, 15.9 ms decode."""
    (figure,) = section(eagle, "breakdown").figures
    totals: dict[str, float] = {}
    for row in values(figure):
        totals[row["bar"]] = totals.get(row["bar"], 0.0) + row["ms"]
    assert [bar for bar in totals if "estimate" not in bar] == [
        *(f"eagle · rank {r} (verify)" for r in range(4)),
        *(f"baseline · rank {r} (decode)" for r in range(4)),
    ]
    assert totals["eagle · rank 0 (verify)"] == pytest.approx(26.07, abs=0.01)
    assert totals["baseline · rank 3 (decode)"] == pytest.approx(15.9, abs=0.01)
    assert ["eagle · rank 0", "verify", "allreduce (exposed)"] in [row[:3] for row in figure.table.rows]
    assert any("observing made the cycle 11 % longer" in note for note in section(eagle, "breakdown").notes)


def test_the_cycle_shown_is_real(eagle: Report) -> None:
    (figure,) = section(eagle, "timeline").figures
    rows = values(figure)
    lanes = list(dict.fromkeys(row["lane"] for row in rows))
    assert lanes == [
        "host: cycle",
        "host: phases",
        "launch calls",
        "stream 7",
        *(f"collectives, rank {r}" for r in range(4)),
    ]
    phases = [(r["kind"], r["us"]) for r in rows if r["lane"] == "host: phases"]
    assert [kind for kind, _ in phases] == [
        "verify",
        "draft",
        "draft extend",
    ]  # the longest first: nested ranges lie on top
    assert sum(us for _, us in phases) == pytest.approx(30_280, abs=50)
    assert sum(r["lane"] == "stream 7" for r in rows) > 300


def test_waiting_is_told_from_transfer(eagle: Report) -> None:
    """Rank 2 comes 20 us late to each phase's first collective: the others wait, it never does."""
    (figure,) = section(eagle, "waits").figures
    waits = {row["rank"]: row["ms"] for row in values(figure) if row["part"] == "waiting"}
    assert waits["rank 2"] == pytest.approx(0.0, abs=1e-6)
    assert waits["rank 0"] > 0.01


def test_cycle_times_traced_and_untraced(eagle: Report) -> None:
    over, spread = section(eagle, "cycle-times").figures[:2]
    medians = {row[0]: float(row[4]) for row in spread.table.rows}
    assert medians == {"untraced": pytest.approx(27.28, abs=0.01), "traced": pytest.approx(30.28, abs=0.01)}
    assert {row["kind"] for row in values(over)} == {"untraced", "traced"}


def test_acceptance_by_position(eagle: Report) -> None:
    (figure,) = section(eagle, "acceptance").figures
    assert [round(row["cumulative"], 3) for row in values(figure)] == [0.62, 0.25, 0.05, 0.015, 0.002]


def test_a_sweep_draws_the_line_and_the_best() -> None:
    """verify = 22.5 ms + 1.033 ms a token; two steps are best, at 93.99 tok/s."""
    report = build_report([story.sweep_recording(steps).trace() for steps in (1, 2, 3, 5)])
    line, speed = section(report, "sweep").figures
    assert line.title == "verify = 22.50 ms + 1.033 ms a token (4 points)"
    assert section(report, "sweep").notes[0].startswith("Best measured: draft steps 2,")
    assert ["2", "measured", "93.99"] in [row[:3] for row in speed.table.rows]
    assert ["4", "predicted"] in [row[:2] for row in speed.table.rows]


def test_what_lacks_says_which_data_would_fill_it() -> None:
    report = build_report([story.first_recording(control=False).trace()])
    missing = {s.key: " ".join(s.missing) for s in report.sections if s.missing}
    assert sorted(missing) == ["changes", "cycle-times", "layers", "sweep", "waits"]
    assert "node map" in missing["layers"]
    assert "record or import all ranks" in missing["waits"]
    assert "untraced" in missing["cycle-times"]
    assert "--baseline" in missing["changes"]
    assert "other step counts" in missing["sweep"]
    (headline,) = report.headlines
    assert "--baseline" in headline.verdict
    assert headline.observing == "unknown"
    notes = " ".join(section(report, "breakdown").notes)
    assert "no untraced estimate" in notes  # rule D6
    assert not any("estimate" in row["bar"] for row in values(section(report, "breakdown").figures[0]))


def test_a_recording_without_windows_draws_no_host_bars() -> None:
    """Host ranges and accepts alone: bars of `host` said nothing about a device that nobody watched."""
    report = build_report([story.first_recording(cycles=60, traced=0).trace()])
    missing = {s.key: " ".join(s.missing) for s in report.sections if s.missing}
    assert section(report, "breakdown").figures == ()
    assert section(report, "breakdown").notes == ()
    assert "eagle: no device work was recorded, for want of a profiler window" in missing["breakdown"]
    assert section(report, "timeline").notes == ()
    assert report.headlines[0].observing == "nothing: no profiler window"
    assert report.findings[0].missing is not None


def test_a_stale_baseline_gives_no_verdict_unless_told() -> None:
    recording, baseline = story.tuned_recording(), story.baseline_recording(15_900_000, False)
    refused = build_report([recording.trace()], baseline=baseline.trace())
    assert refused.headlines[0].verdict.startswith("No verdict: stale baseline")
    assert any("NCCL_PROTO" in line for line in section(refused, "changes").missing)
    told = build_report([recording.trace()], baseline=baseline.trace(), accept_differences=True)
    assert told.headlines[0].verdict.startswith("Speculation pays")
    assert any("NCCL_PROTO: unset → LL" in note for note in section(told, "changes").notes)
    differing = {f.name: f.values for f in told.facts if f.differs}
    assert differing["NCCL_ALGO"] == ("Ring", "unset")
    assert differing["server.args.speculative_num_steps"] == ("2", "unset")


def test_simulated_acceptance_is_said_beside_the_speed() -> None:
    report = build_report([story.first_recording(acceptance=(1.0, 0.0, 0.0, 0.0, 0.0)).trace()])
    assert any("simulated" in line for line in report.headlines[0].caution)


def test_no_phases_no_report() -> None:
    with pytest.raises(TraceError, match="no phase ranges"):
        build_report([traces.trace(traces.rank_trace([traces.kernel("k", 0, 5, 1)]))])


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["/a/steps1/trace.parquet", "/a/steps2/trace.parquet"], ["steps1", "steps2"]),
        (["/a/e2_rank0.json.gz, /a/e2_rank1.json.gz", "/b/e5_rank0.json.gz"], ["e2", "e5"]),
        (["/a/sglang_tp2_plain.parquet", "/a/sglang_tp2.parquet"], ["sglang_tp2_plain", "sglang_tp2"]),
        (["/a/run.parquet", "/b/run.parquet"], ["a/run", "b/run"]),
        (["run.parquet", "run.parquet"], ["/run (1)", "/run (2)"]),
    ],
)
def test_labels_are_short_and_unique(names: list[str], expected: list[str]) -> None:
    assert labels([Trace(name, ()) for name in names]) == expected


def test_every_rule_leads_to_a_section(eagle: Report) -> None:
    there = {s.key for s in eagle.sections} | {"overview", "environment"}
    assert {PLOTS.get(rule.name, OTHERWISE) for rule in RULES} <= there
    assert set(PLOTS) <= {rule.name for rule in RULES}


def test_the_page_is_whole_small_and_offline(eagle: Report) -> None:
    html = to_html(eagle)
    assert len(html.encode()) < MOST_BYTES
    markup = re.sub(r"(?s)<script.*?</script>", "", html)
    assert re.findall(r"<(?:link|script|img|iframe)[^>]*(?:src|href)=\"(?!data:)", markup) == []
    assert "default-src 'none'" in html


def test_a_long_recording_makes_no_longer_a_page() -> None:
    """Tables and points are bounded: ten times the cycles, the same page."""
    short = build_report([story.first_recording(cycles=1_000).trace()])
    long = build_report([story.first_recording(cycles=10_000).trace()])
    sizes = [len(to_html(report)) for report in (short, long)]
    assert sizes[1] < 1.02 * sizes[0]
    assert max(len(f.table.rows) for s in long.sections for f in s.figures) <= MOST_ROWS


def test_many_ranks_fit_the_page() -> None:
    report = build_report([story.first_recording(ranks=64, cycles=60, traced=5).trace()])
    assert len(to_html(report).encode()) < MOST_BYTES
    (figure,) = section(report, "waits").figures
    assert len(figure.table.rows) == 64


# Machado, Oliveira and Fernandes (2009), severity 1.0: how dichromats see linear RGB.
_VISION = {
    "usual": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}


def _lab(colour: str, vision: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """CIE L*a*b* (D65) of a colour as somebody sees it."""
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(_VISION[vision] @ linear, 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ seen
    f = np.where((t := xyz / [0.9505, 1.0, 1.089]) > 0.008856, np.cbrt(t), 7.787 * t + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", list(_VISION))
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_neighbours_in_a_bar_look_different_to_everyone(vision: str, theme: str) -> None:
    """Ten units of L*a*b* are plain to see side by side; slices are also parted by a line of paper."""

    def apart(pair: Sequence[str]) -> float:
        one, other = (_lab(getattr(COLOURS[key], theme), vision) for key in pair)
        return float(np.linalg.norm(one - other))

    order = [key for key, _ in SLICES]
    close = {pair: apart(pair) for pair in pairwise(order) if apart(pair) < 10}
    assert close == {}


def cli(*arguments: str, cwd: Path, blocked: str = "") -> subprocess.CompletedProcess[str]:
    block = f"import sys; sys.modules[{blocked!r}] = None\n" if blocked else "import sys\n"
    code = f"{block}sys.argv = ['specanalyze', *{list(arguments)!r}]\nfrom specanalyze.__main__ import main\nmain()"
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)


def test_the_command_writes_and_never_over(tmp_path: Path) -> None:
    story.first_recording().write(tmp_path)
    done = cli("report", "eagle", "-o", "page.html", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"page\.html: \d\.\d MB; open it in a browser\n", done.stdout)
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
    again = cli("report", "eagle", "-o", "page.html", cwd=tmp_path)
    assert (again.returncode, again.stderr) == (2, "error: page.html exists; choose another name or give --force\n")
    assert cli("report", "eagle", "-o", "page.html", "--force", cwd=tmp_path).returncode == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["eagle", "page.html"]


@pytest.mark.parametrize(
    ("output", "said"), [("page.pdf", "must end in .html"), ("nowhere/page.html", "there is no folder nowhere")]
)
def test_the_output_is_looked_at_first(tmp_path: Path, output: str, said: str) -> None:
    done = cli("report", "absent.parquet", "-o", output, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize("package", ["altair", "vl_convert", "jinja2"])
def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, package: str) -> None:
    story.first_recording().write(tmp_path)
    done = cli("report", "eagle", cwd=tmp_path, blocked=package)
    assert done.returncode == 2
    assert done.stderr == f"error: {package} is not installed; run: {install_line('report')}\n"


@pytest.mark.parametrize("package", ["altair", "vl_convert", "jinja2"])
def test_files_are_complained_of_before_packages(tmp_path: Path, package: str) -> None:
    """Whoever mistyped a name was first sent to install 100 MB."""
    trace = story.first_recording().write(tmp_path)
    (tmp_path / "bad.json").write_text("no trace")
    (tmp_path / "empty.parquet").touch()
    for words, said in (
        (["absent.parquet"], "absent.parquet: no such file or folder"),
        (["bad.json"], "bad.json"),
        (["empty.parquet"], "empty.parquet"),
        ([str(trace), "absent.parquet"], "absent.parquet: no such file or folder"),
        ([str(trace), "--baseline", "absent.parquet"], "absent.parquet: no such file or folder"),
        ([str(trace), "--phase-map", "absent.json"], "absent.json"),
        ([str(trace), "--values", "1,2"], "--values 1,2: give one number"),
    ):
        done = cli("report", *words, cwd=tmp_path, blocked=package)
        assert (done.returncode, done.stderr.count("\n"), said in done.stderr) in ((1, 1, True), (2, 1, True))


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (None, 'pip install "specanalyze[report]"'),
        (
            {"url": "file:///home/me/my%20clone", "dir_info": {"editable": True}},
            "pip install -e '/home/me/my clone[report]'",
        ),
        ({"url": "file:///tmp/a.whl", "archive_info": {}}, "pip install '/tmp/a.whl[report]'"),
        ({"url": "https://host/a.whl", "archive_info": {}}, 'pip install "specanalyze[report] @ https://host/a.whl"'),
    ],
)
def test_the_install_line_is_where_this_installation_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any] | None, expected: str
) -> None:
    """A clone that nobody published cannot be installed by its name."""
    info = tmp_path / "specanalyze-9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: specanalyze\nVersion: 9\n")
    if origin is not None:
        (info / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert install_line("report") == expected


def test_kernels_slower_on_some_ranks_stand_beside_the_waiting() -> None:
    work = story.Work({story.MOE: (61, 9 * MS), "triton_red_fused_0": (61, 122_000), story.ALLREDUCE: (61, 4 * MS)})
    settings: dict[str, Any] = {"ranks": 2, "verify": work, "cycles": 100, "traced": 10}
    slow = story.tuned_recording(slower_ns={1: ("triton_red_fused_0", 1_220_000)}, **settings)
    notes = section(build_report([slow.trace()]), "waits").notes
    assert notes[-1] == (
        "tuned: same kernel, other time: verify other_compute, triton_red_fused_0, 61 calls: 22.0 us a call on rank 1, 2.0 on rank 0: "
        "1.220 ms a verify."
    )
    assert len(section(build_report([story.tuned_recording(**settings).trace()]), "waits").notes) == len(notes) - 1
