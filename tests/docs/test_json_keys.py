"""Every key that ``--json`` prints is named in the documentation."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specanalyze import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = "\n".join((ROOT / "docs" / page).read_text() for page in ("commands.md", "json.md"))
SAMPLE = "samples/sglang_tp2_eagle3_steps2.parquet"
PLAIN = "samples/sglang_tp2_plain.parquet"
BY_DATA = {"unclassified_names", "hosts", "covers"}
"""Objects whose keys are data: names of kernels, ranks, figures."""

COMMANDS = [
    ["breakdown", SAMPLE],
    ["phases", SAMPLE],
    ["layers", SAMPLE],
    ["kernels", SAMPLE],
    ["ranks", SAMPLE],
    ["accept", SAMPLE],
    ["overhead", SAMPLE],
    ["diagnose", SAMPLE],
    ["validate", SAMPLE],
    ["breakeven", SAMPLE, "--baseline", PLAIN],
    ["compare", PLAIN, SAMPLE],
    ["sweep", SAMPLE, "samples/sglang_tp2_eagle3_steps5.parquet"],
    ["whatif", SAMPLE, "--scale", "allreduce=0.7"],
    ["breakdown", "tests/cases/08-seq-numbers-when-a-rank-starts-late"],
    ["ranks", "tests/cases/09-clock-skew-two-hosts"],
    ["ranks", "samples/sglang_tp4_mla61_eagle3_steps2.parquet"],
    ["breakdown", "tests/cases/126-duration-past-three-starts/trace.json"],
    ["breakdown", "tests/cases/141-more-invalid-rows/trace.json"],
    ["accept", "tests/cases/156-accept-adaptive-draft-length/steps.jsonl"],
    ["accept", "tests/cases/49-dp-attention-idle-cycles/steps.jsonl"],
]


def keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            if key not in BY_DATA:
                yield from keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: f"{command[0]} {Path(command[1]).parts[-1][:24]}")
def test_every_key_is_documented(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        assert cli.run([*command, "--json"]) == 0
    found = {key for key in keys(json.loads(out.getvalue())) if not key.isdigit()}
    assert found
    assert sorted(key for key in found if not re.search(rf"\b{re.escape(key)}\b", PAGES)) == []
