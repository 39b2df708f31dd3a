"""The generated page of the trace format is the schema's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from specschema.events import COLUMNS, KINDS
from specschema.format_page import page
from specschema.metadata import SECTIONS
from specschema.phases import BUCKETS, PHASE_KEYS

_ROOT = Path(__file__).resolve().parents[2]


def test_page_is_current() -> None:
    written = (_ROOT / "docs" / "trace-format.md").read_text(encoding="utf-8")
    assert written == page(), "run: python -m specschema.format_page docs/trace-format.md"


def test_page_names_everything() -> None:
    text = page()
    names = [*KINDS, *(column.name for column in COLUMNS), *BUCKETS, *PHASE_KEYS]
    assert [name for name in names if f"`{name}`" not in text] == []
    assert [section for section in SECTIONS if f"`specanalyze.{section}`" not in text] == []
    assert [column.meaning for column in COLUMNS if column.meaning not in text] == []


def test_command_writes_the_page(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    subprocess.run([sys.executable, "-m", "specschema.format_page", path], check=True)
    assert path.read_text(encoding="utf-8") == page()


def test_command_without_a_path_says_its_usage() -> None:
    run = subprocess.run([sys.executable, "-m", "specschema.format_page"], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr.strip() == "usage: python -m specschema.format_page PATH"
