"""Reads survivors.md: mutants that no test can or need tell apart, each with its reason."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

from places import Mutant

PAGE: Final = Path(__file__).with_name("survivors.md")


@cache
def _told() -> dict[tuple[str, str, str], str]:
    """(module, text of the line, change) -> reason."""
    found = {}
    for row in PAGE.read_text().splitlines():
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)]
        if len(cells) == 6 and cells[2].startswith("`"):
            found[cells[1], cells[2].strip("`").strip(), cells[3].strip("`").strip()] = cells[4]
    return found


def reasons(mutant: Mutant, source: str) -> str:
    """Why this mutant may live; empty where nothing is written."""
    line = " ".join(source.splitlines()[mutant.line - 1].split())
    change = " ".join(f"{mutant.was} -> {mutant.now}".split())
    return _told().get((mutant.module.rpartition(".")[2], line, change), "")
