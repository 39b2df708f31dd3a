"""Links between the pages lead somewhere: files exist, headings exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [path for pattern in ("*.md", "docs/*.md", "*/README.md") for path in sorted(ROOT.glob(pattern))]
LINK = re.compile(r"\]\((?P<target>[^)#\s]*)(?:#(?P<anchor>[^)\s]+))?\)")
CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Names that GitHub and mkdocs give to headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links(page: Path) -> None:
    for found in LINK.finditer(CODE.sub("", page.read_text(encoding="utf-8"))):
        if found["target"].startswith(("http://", "https://", "mailto:")):
            continue
        target = (page.parent / found["target"]).resolve() if found["target"] else page
        assert target.exists(), f"{found[0]} leads nowhere"
        if found["anchor"] and target.suffix == ".md":
            assert found["anchor"] in anchors(target), f"{found[0]}: no such heading"
