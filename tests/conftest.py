"""Fixtures shared by all tests."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[1]

# Tables are drawn for a pipe (120 columns) unless a test says otherwise; pytest-xdist's workers set 80.
os.environ.pop("COLUMNS", None)

with contextlib.suppress(ModuleNotFoundError):  # the environments of servers do without
    from hypothesis import settings

    # No test is timed: a busy machine isn't a failure.
    settings.register_profile("untimed", deadline=None)
    settings.load_profile("untimed")


def reference_folder() -> Path | None:
    """Folder of reference recordings and cases: SPECANALYZE_REFERENCE, or ``shared`` beside the checkout."""
    candidates = [os.environ.get("SPECANALYZE_REFERENCE"), _ROOT / "shared", _ROOT.parent / "shared"]
    for candidate in candidates:
        if candidate and (Path(candidate) / "cases").is_dir():
            return Path(candidate)
    return None


@pytest.fixture(scope="session")
def reference() -> Path:
    """Folder with cases/, traces/ and facts/; the test is skipped where it is not at hand."""
    folder = reference_folder()
    if folder is None:
        pytest.skip("reference recordings are not at hand (set SPECANALYZE_REFERENCE)")
    return folder
