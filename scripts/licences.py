"""Lists the licence of every locked package, as its own metadata says: python scripts/licences.py > requirements/licences.md"""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

from packaging.requirements import Requirement

LOCK = Path(__file__).parents[1] / "requirements" / "ci.txt"


def locked(text: str) -> list[Requirement]:
    """The pins of a hashed lock file, in its order."""
    lines = [line.rstrip("\\ ") for line in text.splitlines() if line and not line.startswith(("#", " "))]
    return [Requirement(line) for line in lines]


def licence(name: str) -> str:
    """SPDX expression, else the classifiers, else the first line of the licence field, else of the licence's own text."""
    try:
        facts = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        return "for another Python or system than this was made on"
    expression = facts.get_all("License-Expression")
    if expression:
        return str(expression[0])
    classified = [c.split(" :: ")[-1] for c in facts.get_all("Classifier") or [] if c.startswith("License ::")]
    classified = [c for c in classified if c != "OSI Approved"]
    field = "".join(facts.get_all("License") or []).strip().splitlines()
    field = field or _text(name)
    return ", ".join(classified) or (re.sub(r"\s+", " ", field[0])[:80] if field else "not stated")


def _text(name: str) -> list[str]:
    """The title of the licence that lies in the package: its first two lines that aren't empty, as one."""
    for file in importlib.metadata.files(name) or []:
        if file.name.startswith("LICENSE"):
            title = [line.strip() for line in file.read_text().splitlines() if line.strip()][:2]
            return [", ".join(title)]
    return []


def main() -> None:
    """Print a table; one row a package, whatever number of versions is locked for different Pythons."""
    names = dict.fromkeys(requirement.name for requirement in locked(LOCK.read_text(encoding="utf-8")))
    print("# Licences of the packages in ci.txt")
    print("\nMade by `python scripts/licences.py` from the metadata of the packages installed where it ran.\n")
    print("| package | licence |\n|---|---|")
    for name in names:
        print(f"| {name} | {licence(name)} |")


if __name__ == "__main__":
    main()
