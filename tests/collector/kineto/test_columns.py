"""Kineto's events as columns: the same values that its own JSON has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, record_function

from speccollect.kineto.columns import SLICE, guessed_type, read_columns
from speccollect.kineto.details import parse_details


def test_columns_equal_the_exported_trace(tmp_path: Path) -> None:
    value = torch.ones(8, 8)
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profile:
        for _ in range(SLICE):
            with record_function("spec.verify"):
                value.add(value).mul(value)
    pauses: list[int] = []
    events = profile.profiler.kineto_results.events()
    columns = read_columns(events, pause=lambda: pauses.append(1))
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    exported = json.loads((tmp_path / "trace.json").read_text())
    base = exported.get("baseTimeNanoseconds", 0)
    theirs = sorted(
        (round(e["ts"] * 1000) + base, e["name"], e["cat"])
        for e in exported["traceEvents"]
        if e.get("ph") == "X" and e.get("cat") in ("cpu_op", "user_annotation")
    )
    ours = sorted(
        zip(
            columns.start.tolist(),
            (columns.names[i] for i in columns.name),
            (columns.types[i] for i in columns.type),
            strict=True,
        )
    )
    assert len(ours) == len(theirs) == len(columns) == 3 * SLICE
    assert [o[1:] for o in ours] == [t[1:] for t in theirs]
    # the JSON holds microseconds as decimals: equal to the last nanosecond but for a double's rounding
    assert np.max(np.abs(np.array([o[0] for o in ours]) - np.array([t[0] for t in theirs]))) <= 256
    assert len(pauses) == 3
    assert columns.of_type("user_annotation").sum() == SLICE
    assert columns.name_mask(lambda name: name == "aten::mul").sum() == SLICE


def test_reading_in_one_go_gives_the_same() -> None:
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profile:
        for _ in range(SLICE):
            torch.ones(2).add(1)
    events = profile.profiler.kineto_results.events()
    sliced, whole = read_columns(events, pause=lambda: None), read_columns(events, pause=None)
    for name in ("start", "duration", "correlation", "device", "resource", "name", "type"):
        assert np.array_equal(getattr(sliced, name), getattr(whole, name))


class OldEvent:
    """A real event as torch 2.11 shows it: without its activity type."""

    def __init__(self, event: Any) -> None:
        self.event = event

    def start_ns(self) -> int:
        return int(self.event.start_ns())

    def duration_ns(self) -> int:
        return int(self.event.duration_ns())

    def correlation_id(self) -> int:
        return int(self.event.correlation_id())

    def device_index(self) -> int:
        return int(self.event.device_index())

    def device_resource_id(self) -> int:
        return int(self.event.device_resource_id())

    def name(self) -> str:
        return str(self.event.name())

    def device_type(self) -> Any:
        return self.event.device_type()

    def is_user_annotation(self) -> bool:
        return bool(self.event.is_user_annotation())


def test_torch_without_activity_types_gives_the_same_columns() -> None:
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profile:
        for _ in range(SLICE):
            with record_function("spec.verify"):
                torch.ones(2).add(1)
    events = profile.profiler.kineto_results.events()
    told, guessed = read_columns(events, pause=None), read_columns([OldEvent(e) for e in events], pause=None)
    assert [told.types[i] for i in told.type] == [guessed.types[i] for i in guessed.type]
    assert np.array_equal(told.start, guessed.start)


@pytest.mark.parametrize(
    ("name", "on_device", "user", "expected"),
    [
        ("nvjet_tst_128x64", True, False, "kernel"),
        ("Memcpy DtoH (Device -> Pinned)", True, False, "gpu_memcpy"),
        ("Memset (Device)", True, False, "gpu_memset"),
        ("spec.verify", True, True, "gpu_user_annotation"),
        ("spec.verify", False, True, "user_annotation"),
        ("cudaGraphLaunch", False, False, "cuda_runtime"),
        ("cuLaunchKernelEx", False, False, "cuda_driver"),
        ("cumsum", False, False, "cpu_op"),
        ("aten::mm", False, False, "cpu_op"),
    ],
)
def test_guessed_types(name: str, on_device: bool, user: bool, expected: str) -> None:
    assert guessed_type(name, on_device, user) == expected


def test_no_events() -> None:
    columns = read_columns([], pause=None)
    assert len(columns) == 0
    assert not columns.of_type("kernel").any()
    assert columns.name_mask(lambda _: True).tolist() == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("not json", {}),
        ('"grid": [4, 1, 2], "block": [128, 1, 1], "stream": 7', {"grid": "4x1x2", "block": "128x1x1"}),
        ('"bytes": 4096, "memory bandwidth (GB/s)": 1.5', {"bytes": 4096}),
        ('"graph id": 5, "graph node id": 21474836487', {"graph_id": 5, "node": 7}),
        ('"graph id": 0, "graph node id": 0', {}),
        (
            '"Collective name": "allreduce", "dtype": "BFloat16", "In msg nelems": 6144, "Process Group Name": "0",'
            ' "Process Group Ranks": "[0, 1]", "Seq": 3',
            {"op": "allreduce", "dtype": "BFloat16", "elements": 6144, "group": "0", "group_ranks": [0, 1], "seq": 3},
        ),
        (
            '"Collective name": "allreduce", "Process Group Ranks": "[0, 1, ..., 7]"',
            {"op": "allreduce", "group_ranks": None},
        ),
    ],
)
def test_text_of_an_event(text: str, expected: dict[str, object]) -> None:
    assert parse_details(text) == expected
