"""Settings: what a command line and an environment may say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from speccollect.config import PHASES_ONLY, WindowSettings, folder_from, parse_windows, switched_on
from specschema.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", WindowSettings()),
        ("off", PHASES_ONLY),
        ("none", PHASES_ONLY),
        ("skip=3, record=8,cpu_ops", WindowSettings(skip=3, record=8, cpu_ops=True)),
        ("cpu-ops=false,max-events=10", WindowSettings(max_events=10)),
    ],
)
def test_windows_text(text: str, expected: WindowSettings) -> None:
    assert parse_windows(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("recrod=3", "'recrod' is not a setting; there are: skip, warmup, record"),
        ("record=many", "record needs a whole number, not 'many'"),
        ("record=0", "record must be from 1 to 2147483647, not 0"),
        ("skip=-1", "skip must be from 0 to 2147483647, not -1"),
        ("record=5000", "at most 2048"),
    ],
)
def test_wrong_windows_are_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_windows(text)


def test_last_cycle_counts_control_warmup_and_gaps() -> None:
    assert WindowSettings(skip=60, warmup=2, record=40, repeat=3, gap=50).last_cycle == 60 + 3 * 42 + 2 * 50
    assert PHASES_ONLY.last_cycle == 0


@pytest.mark.parametrize(
    ("environment", "on"),
    [
        ({}, False),
        ({"SPECANALYZE_DIR": "/x"}, True),
        ({"SPECANALYZE": "1"}, True),
        ({"SPECANALYZE": "0", "SPECANALYZE_DIR": "/x"}, False),
        ({"SPECANALYZE_DIR": " "}, False),
    ],
)
def test_the_switch(environment: dict[str, str], on: bool) -> None:
    assert switched_on(environment) is on


def test_folder_from_the_environment() -> None:
    assert folder_from({"SPECANALYZE_DIR": "/run/x"}) == Path("/run/x")


def test_windows_start_from_settings_of_the_callers() -> None:
    base = WindowSettings(skip=3, warmup=1, record=4, repeat=2, gap=3)
    assert parse_windows("modules,record=5", base) == replace(base, modules=True, record=5)
    assert parse_windows("off", base) == parse_windows("off")
