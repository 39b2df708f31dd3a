"""Names in titles: as short as they can be told apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from specanalyze.cli import run
from specanalyze.render.recording_name import distinct_names, short_name

SAMPLE = Path(__file__).parents[2] / "samples" / "embedded_tp2.parquet"


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["/runs/steps2.parquet", "/runs/steps5.parquet"], ["steps2.parquet", "steps5.parquet"]),
        (["/runs/a/trace.parquet", "/runs/b/trace.parquet"], ["a/trace.parquet", "b/trace.parquet"]),
        (["/a/x/trace.parquet", "/b/x/trace.parquet", "/b/y"], ["a/x/trace.parquet", "b/x/trace.parquet", "y"]),
        (["trace.parquet", "/runs/trace.parquet"], ["trace.parquet", "runs/trace.parquet"]),
        (["/runs/same", "/runs/same"], ["/runs/same", "/runs/same"]),
        (["/r/e2_rank0.json, /r/e2_rank1.json"], ["e2_rank0.json and 1 more"]),
        (["/", "."], ["/", "."]),
    ],
)
def test_distinct_names(names: list[str], shown: list[str]) -> None:
    assert distinct_names(names) == shown


def test_one_name() -> None:
    assert short_name("/a/b/") == "b"


def test_titles_do_not_hold_the_whole_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A temporary folder's path wrapped the titles of compare and whatif over three lines."""
    before, after = (tmp_path / "a_rather_long_name_of_a_folder" / side / "trace.parquet" for side in ("a", "b"))
    for path in (before, after):
        path.parent.mkdir(parents=True)
        path.symlink_to(SAMPLE.resolve())
    titles = {
        ("compare", str(before), str(after)): "a/trace.parquet -> b/trace.parquet",
        ("whatif", str(before), "--scale", "moe=0.5", "--against", str(after)): "against b/trace.parquet",
        ("sweep", str(before)): "",
        ("diagnose", str(before)): "trace.parquet: untraced cycle ",
        ("env", str(before)): "trace.parquet: what ran",
        ("validate", str(before)): "trace.parquet: read whole",
    }
    for command, title in titles.items():
        assert run([*command]) == 0
        shown = capsys.readouterr().out
        assert title in shown
        assert "a_rather_long_name" not in shown
