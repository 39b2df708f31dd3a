"""The regression guard: what it lets pass, and that it can fail. What it measures is measured in CI, not here."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.guard")


def measuring(*found: float) -> Callable[[Path], dict[str, float]]:
    """A measure that finds these one after another."""
    left = list(found)
    return lambda data: {"a / b": left.pop(0)}


def test_a_ratio_within_the_band_is_measured_once(guard: Any) -> None:
    assert guard.judged([measuring(1.5)], ROOT, {"a / b": 1.0}) == {"a / b": 1.5}


def test_a_stall_of_the_machine_is_forgiven(guard: Any) -> None:
    ratios = guard.judged([measuring(9.0, 1.1)], ROOT, {"a / b": 1.0})
    assert ratios == {"a / b": 1.1}
    assert guard.worse(ratios, {"a / b": 1.0}) == []


def test_what_is_slower_twice_is_slower(guard: Any) -> None:
    ratios = guard.judged([measuring(4.0, 3.9)], ROOT, {"a / b": 1.0})
    assert guard.worse(ratios, {"a / b": 1.0}) == ["a / b"]


@pytest.mark.parametrize(("committed", "code"), [(1.0, 0), (0.1, 1)])
def test_a_planted_ratio_decides_the_exit_code(
    guard: Any,
    committed: float,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ratios = tmp_path / "ratios.json"
    ratios.write_text(json.dumps({"a / b": committed}))
    monkeypatch.setitem(guard.MEASURES, "starts", measuring(0.9, 0.9))
    monkeypatch.setattr("sys.argv", ["guard", "--only", "starts", "--ratios", str(ratios)])
    if code:
        with pytest.raises(SystemExit) as stop:
            guard.main()
        assert stop.value.code == code
        assert capsys.readouterr().out == "SLOWER     0.90  allowed    0.16  a / b\n"
    else:
        guard.main()
        assert capsys.readouterr().out == "ok         0.90  allowed    1.60  a / b\n"


def test_what_is_measured_is_what_is_committed(guard: Any) -> None:
    assert all(isinstance(ratio, float) for ratio in json.loads(guard.COMMITTED.read_text()).values())
    source = Path(guard.__file__).read_text()
    for name in json.loads(guard.COMMITTED.read_text()):
        assert name.split(" / ")[0].split(",")[0] in source
