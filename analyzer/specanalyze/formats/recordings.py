"""Which rank of which recording a file is."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specschema.errors import TraceError

_RANKS: Final = (
    re.compile(r"(?<![A-Za-z])rank[-_]?(\d+)(?!\d)", re.IGNORECASE),
    re.compile(r"(?<![A-Za-z])TP[-_]?(\d+)(?!\d)", re.IGNORECASE),
)
"""``1756600000.1-TP-3.trace.json``, ``rank3``, ``e2_rank-3``, ``kernels.rank0.parquet`` (RULES R9); where a name says both
(``dp1_pp0_tp0_rank1``), the rank is the global one."""
_DIGITS: Final = 6
"""A longer number is a time or a process, and no rank."""
_COORDINATES: Final = re.compile(r"[-_.]?(?<![A-Za-z])(?:TP|DP|PP|EP|rank)[-_]?\d+(?!\d)", re.IGNORECASE)
_TORCH_HANDLER: Final = re.compile(r"(?P<host>.+)_(?P<pid>\d+)\.(?:.*\.)?json(?:\.gz)?")
"""``<host>_<pid>.<time>.pt.trace.json``: torch.profiler.tensorboard_trace_handler (RULES R7); what follows the process is often renamed."""
_ENDINGS: Final = re.compile(r"(?:\.pt)?(?:\.trace)?\.(?:json|parquet)(?:\.gz)?$")


@dataclass(frozen=True)
class RankFile:
    """A file that holds the events of one rank.

    Attributes:
        path: the file.
        rank: global rank; None where neither the file nor its name says it.
        host: host name; None where nothing says it.
        world_size: ranks of the recording, as the file says.
        base_ns: Unix time of the file's time 0; 0 where times are absolute.
    """

    path: Path
    rank: int | None
    host: str | None = None
    world_size: int | None = None
    base_ns: int = 0


def rank_in_name(name: str) -> int | None:
    """``e2_m17_rank1.json.gz`` -> 1."""
    found = next((found for pattern in _RANKS if (found := pattern.search(name))), None)
    return int(found.group(1)) if found and len(found.group(1)) <= _DIGITS else None


def host_in_name(name: str) -> str | None:
    """``nodeA_700.1790000000.pt.trace.json`` -> nodeA. A beginning that tells a rank is no host: ``rank0_1.json``."""
    found = _TORCH_HANDLER.fullmatch(name)
    return found.group("host") if found and rank_in_name(found.group("host")) is None else None


def recording_in_name(name: str) -> str:
    """The part of a file name that all ranks of a recording share: ``1756600000.1-TP-0.trace.json`` -> 1756600000.1."""
    return _COORDINATES.sub("", _ENDINGS.sub("", name)).strip("-_.") or name


def refuse_two_recordings(files: Sequence[RankFile]) -> None:
    """A rank occurs once in a recording.

    Raises:
        TraceError: ranks that occur several times, and the recordings they belong to.
    """
    by_rank: dict[int, list[RankFile]] = defaultdict(list)
    for file in files:
        if file.rank is not None:
            by_rank[file.rank].append(file)
    twice = {rank: found for rank, found in by_rank.items() if len(found) > 1}
    if not twice:
        return
    most = max(len(found) for found in twice.values())
    names = sorted({recording_in_name(file.path.name) for found in twice.values() for file in found})
    if len(names) < 2:
        names = sorted({f"{file.path.name} (time base {file.base_ns})" for found in twice.values() for file in found})
    ranks = sorted(twice)
    which = f"rank {ranks[0]} appears" if len(ranks) == 1 else f"ranks {_listed(ranks)} appear"
    raise TraceError(
        f"{_count(len(names))} recordings in folder {files[0].path.absolute().parent.name}: {which} {'twice' if most == 2 else f'up to {most} times'} "
        f"({' and '.join(names) if len(names) < 3 else ', '.join(names)}); choose one: give the files of one recording"
    )


def _listed(ranks: Sequence[int]) -> str:
    shown = [str(rank) for rank in ranks]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _count(n: int) -> str:
    return {2: "two", 3: "three", 4: "four"}.get(n, str(n))
