"""Folders that servers' profilers write: which files are ranks, and traces that a server merged from all ranks.

SGLang writes ``<id>-TP-0[-DP-0][-PP-0][-EP-0][-EXTEND|-DECODE].trace.json.gz`` and, with ``merge_profiles``, ``merged-<id>.trace.json.gz``
(python/sglang/srt/utils/profile_merger.py). vLLM writes ``<worker>-rank-0.<time>.pt.trace.json.gz``, or ``<host>_<pid>.<time>.pt.trace.json.gz``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from specanalyze.formats.file_text import FileText
from specanalyze.formats.kineto_columns import Row, decode
from specanalyze.whole_number import whole_number
from specschema.errors import TraceError

_MERGED_NAME: Final = re.compile(r"merged-.+\.json(?:\.gz)?")
_LABEL: Final = re.compile(rb'"pid"\s*:\s*"(\[(?:TP|DP|PP|EP)\d{1,6}(?:-(?:TP|DP|PP|EP)\d{1,6}){0,3}\]) ')
"""``"pid": "[TP00-DP01] 4242"``: what the merger makes of each row's process."""
_BEGINNING_BYTES: Final = 1 << 20
"""A merged trace names a rank here; what doesn't is not read further."""
_LABEL_BYTES: Final = 128
_COORDINATE: Final = re.compile(r"([TDPE]P)(\d+)")
_MOST_RANKS: Final = 4096
"""Ranks of one merged file: each of them is a pass over the file."""


class MergedRank(NamedTuple):
    """One rank of a merged trace.

    Attributes:
        label: ``[TP01-DP00]``.
        key: what reports call it: the tensor-parallel rank where that tells the ranks apart, else the label.
        rank: tensor-parallel rank, -1 where it does not tell them apart.
    """

    label: str
    key: str
    rank: int


def without_merged(files: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Files of a folder without the merged trace that lies beside the ranks it was made of; and a line about it."""
    merged = [path for path in files if _MERGED_NAME.fullmatch(path.name)]
    ranks = [path for path in files if path not in merged]
    if not merged or not ranks:
        return list(files), []
    return ranks, [f"{path.name} holds the ranks that lie beside it once more: left out" for path in merged]


def merged_ranks(path: Path) -> list[MergedRank]:
    """Ranks that a merged trace holds; none for a trace of one process. Only a trace that begins like a merged one is read through."""
    labels: set[bytes] = set()
    before = b""
    for number, chunk in enumerate(FileText(path, first_bytes=_BEGINNING_BYTES).chunks()):
        labels.update(_LABEL.findall(before + chunk))
        before = chunk[-_LABEL_BYTES:]
        if len(labels) > _MOST_RANKS:
            raise TraceError(f"{path.name} names more than {_MOST_RANKS} ranks: no server merges so many")
        if number == 0 and not labels and not _MERGED_NAME.fullmatch(path.name):
            return []
    names = sorted(label.decode() for label in labels)
    places = {name: {kind: int(n) for kind, n in _COORDINATE.findall(name)} for name in names}
    tensor = [place.get("TP", -1) for place in places.values()]
    if -1 in tensor or len(set(tensor)) < len(tensor):
        return [MergedRank(name, name.strip("[]"), -1) for name in names]
    return [MergedRank(name, str(rank), rank) for name, rank in zip(names, tensor, strict=True)]


def rows_of(label: str) -> Callable[[bytes], list[Row]]:
    """A decoder that gives only the rows of one rank of a merged trace, their process as it was before."""
    return partial(_rows_of, f"{label} ")


def _rows_of(start: str, text: bytes) -> list[Row]:
    rows = [row for row in decode(text) if isinstance(row.pid, str) and row.pid.startswith(start)]
    for row in rows:
        process = str(row.pid).removeprefix(start)
        number = whole_number(process)
        row.pid = process if number is None else number
    return rows
