"""The folders of the collector, their tests, and the page that says what each is for, name the same things."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "collector" / "speccollect"


def folders(place: Path) -> set[str]:
    return {found.parent.relative_to(place).as_posix() for found in place.glob("*/*.py")}


def test_the_page_names_every_folder() -> None:
    page = (ROOT / "collector" / "README.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^## Where things are\n(.*?)\n\n", page, flags=re.DOTALL | re.MULTILINE)
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)) == sorted(folders(PACKAGE))


def test_tests_lie_in_folders_of_the_same_names() -> None:
    assert folders(Path(__file__).parent) - folders(PACKAGE) == set()
