"""The text Kineto keeps beside an event: collective metadata, grid and block, graph and node ids, sizes of copies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from speccollect.kineto.columns import SLICE
from speccollect.nodemap.cuda_graph import ORDINAL_MASK

_COLLECTIVE: Final = {
    "Collective name": "op",
    "dtype": "dtype",
    "In msg nelems": "elements",
    "Process Group Name": "group",
    "Process Group Ranks": "group_ranks",
    "Seq": "seq",
}
NODE_IDS: Final = {"graph id": "graph_id", "graph node id": "node"}
"""Kineto's keys for an activity's executable graph and its node in it, from torch 2.12 on (kernels; 2.14: copies, too)."""
_DEVICE: Final = {"bytes": "bytes", **NODE_IDS}
DETAIL_COLUMNS: Final = (*_COLLECTIVE.values(), *_DEVICE.values(), "grid", "block")

_TYPES: Final = {
    "elements": pa.int64(),
    "group_ranks": pa.list_(pa.int32()),
    "seq": pa.int64(),
    "bytes": pa.int64(),
    "graph_id": pa.int64(),
    "node": pa.int64(),
}


def _ranks(value: Any) -> list[int] | None:
    """Group ranks: a list, or the text of one, perhaps shortened with dots (then unknown)."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return [int(v) for v in value] if isinstance(value, list) and all(isinstance(v, int) for v in value) else None


def parse_details(text: str) -> dict[str, Any]:
    """One event's text (the inside of a JSON object) -> values by column name; empty when it says nothing of use."""
    if not text:
        return {}
    try:
        raw = json.loads(text if text.lstrip().startswith("{") else "{" + text + "}")
    except ValueError:
        return {}
    found: dict[str, Any] = {}
    for key, column in (*_COLLECTIVE.items(), *_DEVICE.items()):
        value = raw.get(key)
        if value is None or value == "":
            continue
        if column == "group_ranks":
            value = _ranks(value)
        elif column in _TYPES:
            value = int(value)
        else:
            value = str(value)
        found[column] = value
    if found.get("node", found.get("graph_id")) == 0:
        # Kineto's "no graph": a node's id holds its graph, and graphs count from 1
        found.pop("graph_id", None)
        found.pop("node", None)
    if "node" in found:
        found["node"] &= ORDINAL_MASK
    for key in ("grid", "block"):
        if isinstance(raw.get(key), list):
            found[key] = "x".join(str(v) for v in raw[key])
    return found


def node_ids(
    graph: npt.NDArray[np.int64], node: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Executable graph and node's ordinal of activities, -1 for those of no graph.

    Args:
        graph, node: what Kineto's text gives under ``NODE_IDS``, -1 where it gives nothing.
    """
    outside = np.where(node != -1, node, graph) <= 0
    return np.where(outside, -1, graph), np.where(outside | (node == -1), -1, node & ORDINAL_MASK)


def read_details(texts: Iterable[str], *, pause: Callable[[], None]) -> dict[str, pa.Array]:
    """Detail columns of some events.

    Args:
        texts: the profiler's text of each, in the order of the result.
        pause: called after each slice.

    Returns:
        Column name -> Arrow array, for the columns that any of the events fills.
    """
    columns: dict[str, list[Any]] = {name: [] for name in DETAIL_COLUMNS}
    for done, text in enumerate(texts, start=1):
        details = parse_details(text)
        for name, values in columns.items():
            values.append(details.get(name))
        if done % (SLICE // 4) == 0:
            pause()
    return {
        name: pa.array(values, type=_TYPES.get(name, pa.string()))
        for name, values in columns.items()
        if any(value is not None for value in values)
    }
