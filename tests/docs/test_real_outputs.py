"""The outputs in the README and the docs are what the commands print now (scripts/render_docs.py)."""

from __future__ import annotations

import sys
from pathlib import Path

import docs_script
import pytest

ROOT = Path(__file__).resolve().parents[2]


render_docs = docs_script.render_docs()
WITH_OUTPUTS = [page for page in render_docs.pages() if "<!-- /" in page.read_text(encoding="utf-8")]


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_OUTPUTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_current(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert render_docs.render(text) == text, f"stale: run python scripts/render_docs.py {page.relative_to(ROOT)}"


def test_layout_keeps_one_of_each() -> None:
    document = {"ranks": {"0": {"total_ns": 3}, "1": {"total_ns": 4}}, "rows": [{"a": [1, 2]}, {"a": []}]}
    assert render_docs.layout(document, 2) == {
        "ranks": {"0": "{…}", "…": "… 2 in all"},
        "rows": ["{…}", "… 2 in all"],
    }


def test_head_says_that_it_cuts() -> None:
    shown = render_docs.block(f"{sys.executable} -c 'print(1);print(2);print(3)'", "head", 2)
    assert shown.splitlines()[-4:] == ["1", "2", "...", "```"]
