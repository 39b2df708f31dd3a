"""What commands print as text, whatever the command: lines end where their text ends, and zero has no sign."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specanalyze.cli import run
from specanalyze.commands import COMMANDS

SAMPLES = Path(__file__).parents[2] / "samples"
STEPS2, PLAIN = str(SAMPLES / "sglang_tp2_eagle3_steps2.parquet"), str(SAMPLES / "sglang_tp2_plain.parquet")
NCCL, STEPS5 = str(SAMPLES / "sglang_tp2_eagle3_steps2_nccl.parquet"), str(SAMPLES / "sglang_tp2_eagle3_steps5.parquet")
CALLS = {
    "breakdown": [[STEPS2], [STEPS2, "--by", "cycle"]],
    "phases": [[STEPS2], [STEPS2, "--by", "cycle"], [STEPS2, "--by", "request"]],
    "layers": [[STEPS2]],
    "kernels": [[STEPS2, "--top", "30"]],
    "ranks": [[STEPS2]],
    "diagnose": [[STEPS2, "--baseline", PLAIN]],
    "breakeven": [[STEPS2, "--baseline", PLAIN]],
    "accept": [[STEPS2], [STEPS2, "--by", "request"]],
    "compare": [[STEPS2, NCCL, "--accept-differences"]],
    "sweep": [[STEPS2, STEPS5]],
    "whatif": [[STEPS2, "--steps", "5", "--against", STEPS5], [STEPS2, "--scale", "allreduce=0.7"]],
    "env": [[STEPS2]],
    "overhead": [[STEPS2]],
    "validate": [[STEPS2]],
    "report": [[STEPS2, "-o", "page.html"]],
    "import": [[STEPS2, "-o", "made.parquet"]],
    "export": [[STEPS2, "--to", "chrome", "-o", "made.json"]],
    "redact": [[STEPS2, "-o", "made.parquet"]],
}
SIGNED_ZERO = re.compile(r"(?<![\w.+-])[+-]0(?:\.0+)?(?![\w.])")


@pytest.mark.parametrize("name", COMMANDS)
def test_lines_end_where_their_text_ends(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for width in ("72", "200"):
        monkeypatch.setenv("COLUMNS", width)
        calls = [["--help"], *CALLS[name]] if width == "72" else [w for w in CALLS[name] if "-o" not in w]
        for words in calls:
            assert run([name, *words]) == 0
            shown = capsys.readouterr()
            lines = [*shown.out.split("\n"), *shown.err.split("\n")]
            assert [line for line in lines if line != line.rstrip()] == []
            assert [line for line in lines if SIGNED_ZERO.search(line)] == []
            assert len(lines) > 2
