"""The compiled form of ``intervals.overlay``."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specanalyze.native.library import library


def overlay(
    layers: Sequence[Sequence[NDArray[np.int64]]], begin: int, end: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None:
    """(start, end, owner) of the stretches; see ``intervals.overlay``. None without a compiled library."""
    compiled = library("overlay")
    if compiled is None:
        return None
    columns = [[np.ascontiguousarray(column, dtype=np.int64) for column in layer] for layer in layers]
    counts = [len(layer[0]) for layer in columns]
    # Stretches begin and end where intervals do: at most twice as many as intervals. Pages never written take no memory.
    results = [np.empty(2 * sum(counts) + 1, dtype=np.int64) for _ in range(3)]
    function = compiled.overlay
    function.restype = ctypes.c_ssize_t
    many = len(layers)
    made = function(
        ctypes.c_int(many),
        *((ctypes.c_void_p * many)(*(layer[i].ctypes.data for layer in columns)) for i in range(3)),
        (ctypes.c_size_t * many)(*counts),
        ctypes.c_int64(begin),
        ctypes.c_int64(end),
        *(ctypes.c_void_p(result.ctypes.data) for result in results),
    )
    if made < 0:
        return None
    start, stop, owner = (result[:made] for result in results)
    return start, stop, owner
