"""What each kernel took in each instance of a phase, on one rank: what kernels of several ranks are compared by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from specanalyze.answers.layers import over_layers
from specanalyze.attribution.activities import communication_code
from specanalyze.attribution.window_work import WindowWork
from specanalyze.columns import Ints, distinct, texts
from specschema.phases import BUCKETS, LEAF_PHASES, PHASE_KEYS

KEYS: Final = ("phase", "bucket", "module", "name")
TIMES: Final[dict[str, Any]] = {
    **dict.fromkeys(("kernel", "window", "instance", "calls"), pl.UInt32),
    **dict.fromkeys(("busy_ns", "exposed_ns"), pl.Int64),
}
_SLICE: Final = 1 << 17
"""Activities handled at once, so that nothing as long as the window is made."""
_COMPARED: Final = np.array([phase in LEAF_PHASES for phase in PHASE_KEYS])


@dataclass(frozen=True)
class InstanceKernels:
    """The work of one rank that is not communication, instance by instance of its phases.

    Attributes:
        keys: one row a kernel: columns KEYS; module over all layers (``layers.over_layers``), null where no node or module
            range tells it.
        times: one row a kernel and instance: kernel (row of ``keys``), window, instance (number of the phase's range in the
            window), calls, busy_ns (plain sum of durations), exposed_ns (what the partition gave them).
    """

    keys: pl.DataFrame
    times: pl.DataFrame

    @classmethod
    def of(cls, work: WindowWork) -> InstanceKernels:
        """Of one window."""
        of_node, modules = _modules(work)
        sizes = (len(modules), max(1, len(work.names)), len(BUCKETS))
        parts = [_slice(work, slice(low, low + _SLICE), of_node, sizes) for low in range(0, len(work), _SLICE)]
        sums = pl.concat(parts).group_by("code").agg(pl.all().sum()) if parts else pl.DataFrame(schema=_SUMS)
        rest, bucket = np.divmod(sums.get_column("code").to_numpy(), sizes[2])
        rest, name = np.divmod(rest, sizes[1])
        instance, module = np.divmod(rest, sizes[0])
        key, kernel = distinct((module * sizes[1] + name) * sizes[2] + bucket)
        # A kernel of two phases is two: the phase of an instance is that of its range.
        phase = work.ranges.phase.astype(np.int64)[instance]
        used, kernel = distinct(kernel * len(PHASE_KEYS) + phase)
        at, phases = np.divmod(used, len(PHASE_KEYS))
        rest, buckets = np.divmod(key[at], sizes[2])
        module, name = np.divmod(rest, sizes[1])
        keys = pl.DataFrame(
            {
                "phase": [PHASE_KEYS[p] for p in phases.tolist()],
                "bucket": [BUCKETS[b] for b in buckets.tolist()],
                "module": [modules[m] for m in module.tolist()],
                "name": [work.names[n] for n in name.tolist()],
            },
            schema=dict.fromkeys(KEYS, pl.String),
        )
        columns = {"kernel": kernel, "window": np.full(len(kernel), work.window), "instance": instance}
        return cls(keys, _times({**columns, **{n: sums.get_column(n) for n in ("calls", "busy_ns", "exposed_ns")}}))


_SUMS: Final = dict.fromkeys(("code", "calls", "busy_ns", "exposed_ns"), pl.Int64)


def _slice(work: WindowWork, part: slice, of_node: Ints, sizes: tuple[int, int, int]) -> pl.DataFrame:
    """Sums of some activities by (instance, module, name, bucket)."""
    mine = _COMPARED[work.phase[part]] & (work.range[part] >= 0) & ~communication_code(work.bucket[part])
    rows = np.flatnonzero(mine) + part.start
    code = work.range[rows].astype(np.int64)
    for size, column in zip(sizes, (of_node[work.node[rows]], work.name[rows], work.bucket[rows]), strict=True):
        code = code * size + column
    columns = {"code": code, "calls": np.ones(len(rows), dtype=np.int64)}
    columns |= {"busy_ns": work.length[rows].astype(np.int64), "exposed_ns": work.exposed[rows].astype(np.int64)}
    return pl.DataFrame(columns, schema=_SUMS).group_by("code").agg(pl.all().sum())


def _modules(work: WindowWork) -> tuple[Ints, list[str | None]]:
    """Number of the module of each node, over all layers, and that of no node as the last; and the modules, the first unknown."""
    if work.nodes is None or not work.nodes.height:
        return np.zeros(1, dtype=np.int64), [None]
    named = pl.DataFrame({"module": texts(work.nodes, "module")}, schema={"module": pl.String})
    general = named.select(over_layers("module")).get_column("module")
    known = sorted(general.drop_nulls().unique().to_list())
    number = {module: place for place, module in enumerate(known, start=1)}
    of_node = general.replace_strict(number, default=0, return_dtype=pl.Int64).fill_null(0)
    return np.append(of_node.to_numpy(), 0), [None, *known]


def _times(columns: dict[str, Any]) -> pl.DataFrame:
    table = pl.DataFrame({name: columns[name] for name in TIMES})
    return table.select(pl.col(name).cast(kind) for name, kind in TIMES.items()).sort("kernel", "window", "instance")


def rank_instances(windows: Sequence[InstanceKernels]) -> InstanceKernels:
    """Of one rank, from its windows."""
    if not windows:
        return InstanceKernels(pl.DataFrame(schema=dict.fromkeys(KEYS, pl.String)), pl.DataFrame(schema=TIMES))
    keys = pl.concat([window.keys for window in windows])
    whole = keys.unique(maintain_order=True).with_row_index("kernel")
    numbers = keys.join(whole, on=list(KEYS), how="left", nulls_equal=True, maintain_order="left")
    first, tables, several = 0, [], False
    for window in windows:
        of_key = numbers.get_column("kernel").slice(first, window.keys.height)
        first += window.keys.height
        several |= of_key.n_unique() < len(of_key)
        tables.append(window.times.with_columns(of_key.gather(window.times.get_column("kernel")).alias("kernel")))
    times = pl.concat(tables)
    if several:  # activities that look different may bear one name: they are one kernel
        times = times.group_by("kernel", "window", "instance").agg(pl.all().sum())
    return InstanceKernels(whole.drop("kernel"), _times(times.to_dict()))
