"""The comparison of the ways to a node on torch's own events (tests/support/device_activities.cpp); on a GPU it is one
command, ``python -m speccollect.nodemap_check``."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest
import torch
from device_activities import DeviceActivities, Given

from speccollect.kineto.columns import KinetoColumns
from speccollect.kineto.events import PythonEvents
from speccollect.nodemap import capture as nodemap
from speccollect.nodemap_check.annotations import compare_annotations, unavailable
from speccollect.nodemap_check.sessions import streams_of
from speccollect.nodemap_check.ways import (
    CUPTI,
    KINETO,
    ORDER,
    check_graph,
    compare_names,
    compare_nodes,
    like_the_map,
    names_by_id,
    names_by_order,
    with_node_ids,
)

EXECUTABLE = 6
ROWS: dict[str, Any] = {
    "node": [0, 1, 2, 3],
    "node_type": ["kernel", "event_record", "kernel", "kernel"],
    "name": ["norm", "event_record", "nvjet", "silu"],
    "module": ["M.layers.0.norm", None, "M.layers.0.up", "M.layers.1"],
}
KERNELS = [(0, "norm"), (2, "nvjet"), (3, "silu")]


def replays(
    device: DeviceActivities, kernels: list[tuple[int, str]], times: int = 3, streams: int = 1
) -> KinetoColumns:
    """Replays whose kernels start in the order given, on so many streams in turn."""
    begin = time.time_ns()
    given = []
    for turn in range(times):
        at, correlation = begin + 1000 * turn, 90 + turn
        given.append(Given("call", "cudaGraphLaunch", at, 10, 5, correlation))
        for place, (node, name) in enumerate(kernels):
            given.append(
                Given("kernel", name, at + 100 + 10 * place, 5, 7 + place % streams, correlation, EXECUTABLE, node)
            )
    return with_node_ids(PythonEvents(device.profile(given).profiler.kineto_results))


class Checks:
    """What a check says, and of what it failed."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.said: list[str] = []

    def check(self, passed: bool, text: str) -> None:
        self.said.append(text)
        if not passed:
            self.failed.append(text)


def test_ways_that_agree(device: DeviceActivities) -> None:
    columns, checks = replays(device, KERNELS), Checks()
    compare_nodes(checks.check, "g", ROWS, columns, 3)
    compare_names(
        checks.check,
        checks.said.append,
        "g",
        {ORDER: names_by_order(ROWS, columns), KINETO: names_by_id(columns), CUPTI: names_by_id(columns)},
    )
    assert checks.failed == []
    assert "3 of 3 replays have every node once by its id" in checks.said[0]
    assert checks.said[1] == (
        "g: order of starts and Kineto's node ids name the same activity at 3 of 3 nodes (3 and 3 have one)"
    )
    assert len(checks.said) == 4  # three pairs


def test_an_order_of_starts_that_the_ids_contradict_fails(device: DeviceActivities) -> None:
    columns, checks = replays(device, [KERNELS[1], KERNELS[0], KERNELS[2]]), Checks()
    compare_nodes(checks.check, "g", ROWS, columns, 3)
    assert checks.failed == []  # the ids are right, and say that the order is not
    assert "in 0 replays the order of starts says the same" in checks.said[0]
    ways = {ORDER: names_by_order(ROWS, columns), KINETO: names_by_id(columns)}
    compare_names(checks.check, checks.said.append, "g", ways)
    assert checks.failed == [
        "g: order of starts and Kineto's node ids name the same activity at 1 of 3 nodes (3 and 3 have one)"
    ]
    assert checks.said[-1] == f"      g: {CUPTI} can't be compared on this machine"


def test_on_several_streams_an_order_that_contradicts_the_map_is_told_from_one_that_does_not(
    device: DeviceActivities,
) -> None:
    swapped = replays(device, [KERNELS[1], KERNELS[0], KERNELS[2]], streams=2)
    assert streams_of(swapped) == 2
    assert not like_the_map(ROWS, names_by_order(ROWS, swapped))
    kept = replays(device, KERNELS, streams=2)
    assert like_the_map(ROWS, names_by_order(ROWS, kept))
    assert streams_of(replays(device, KERNELS)) == 1
    assert not like_the_map(ROWS, {})


def test_ids_of_other_nodes_than_the_maps_fail(device: DeviceActivities) -> None:
    columns, checks = replays(device, [(0, "norm"), (1, "nvjet"), (3, "silu")]), Checks()
    compare_nodes(checks.check, "g", ROWS, columns, 3)
    assert len(checks.failed) == 1
    assert checks.failed[0].startswith("g: 0 of 3 replays")


def test_a_replay_that_is_not_whole_names_nothing_by_order(device: DeviceActivities) -> None:
    columns, checks = replays(device, KERNELS[:2]), Checks()
    ways = {ORDER: names_by_order(ROWS, columns), KINETO: names_by_id(columns)}
    assert ways[ORDER] == {}
    assert ways[KINETO] == {0: "norm", 2: "nvjet"}
    compare_names(checks.check, checks.said.append, "g", ways)
    assert len(checks.failed) == 1


def test_the_executable_graph_is_the_captured_one(device: DeviceActivities, monkeypatch: pytest.MonkeyPatch) -> None:
    columns, checks = replays(device, KERNELS), Checks()
    monkeypatch.setitem(nodemap.INSTANTIATED, EXECUTABLE, 2)
    check_graph(checks.check, checks.said.append, "g: Kineto's", columns, 2)
    assert checks.failed == []
    check_graph(checks.check, checks.said.append, "g: Kineto's", columns, 1)
    assert len(checks.failed) == 1


def test_graphs_that_nothing_names_are_not_compared(device: DeviceActivities, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver before 13.1 without cupti-python: stamps tell the graph there."""
    for table in (nodemap.CAPTURED, nodemap.INSTANTIATED):
        for key in list(table):
            monkeypatch.delitem(table, key)
    columns, checks = replays(device, KERNELS), Checks()
    check_graph(checks.check, checks.said.append, "g: Kineto's", columns, 2)
    assert checks.failed == []
    assert "are not compared" in checks.said[0]


def test_copies_may_lack_an_id_only_where_torch_gives_them_none(device: DeviceActivities) -> None:
    rows = ROWS | {"node_type": ["kernel", "event_record", "kernel", "memcpy"]}
    columns = replays(device, KERNELS[:2])
    strict, lenient = Checks(), Checks()
    compare_nodes(strict.check, "g", rows, columns, 3)
    compare_nodes(lenient.check, "g", rows, columns, 3, copies=False)
    assert len(strict.failed) == 1
    assert lenient.failed == []
    assert lenient.said[0].startswith("g: 3 of 3 replays have every kernel once by its id")
    lost = Checks()
    compare_nodes(lost.check, "g", ROWS, columns, 3, copies=False)
    assert len(lost.failed) == 1  # what is missing is a kernel


def test_annotations_are_compared_by_layer() -> None:
    high = EXECUTABLE << 32
    annotations = {
        high: [{"name": "layers.0"}],
        high | 2: [{"name": "layers.0"}],
        high | 3: [{"name": "layers.0"}],
        high | 9: [{"name": "layers.1"}],
        7 << 32: [{"name": "layers.0"}],  # another graph's
    }
    assert compare_annotations(annotations, ROWS, EXECUTABLE) == (
        4,
        2,
        ["node 3: annotated layers.0, the map has M.layers.1", "node 9: annotated layers.1, the map has None"],
    )


def test_why_there_are_no_annotations_is_one_line() -> None:
    if torch.cuda.is_available():
        pytest.skip("has a GPU")
    why = unavailable()
    assert why is not None
    assert "torch.cuda.graph_annotations" in why


def test_without_a_gpu_the_check_says_so_in_one_line() -> None:
    if torch.cuda.is_available():
        pytest.skip("has a GPU")
    done = subprocess.run(
        [sys.executable, "-m", "speccollect.nodemap_check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "no CUDA device here\n")
