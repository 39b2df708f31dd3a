"""How many profiler windows an export of ours holds that does not say it: those made before ``chrome_member`` wrote them down.

Such a file is read as any other of torch.profiler's, as one window, and what lies between its windows becomes the server's own time. It shows
itself by the row that names its partition; and the partition covers each window without a gap, so its stretches tell how many there are.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import numpy as np

from specanalyze.formats.file_text import CHUNK_BYTES, FileText

_HEAD_BYTES: Final = 1 << 14
"""Holds what our export writes before its events."""
_NAMED: Final = re.compile(rb'"name": "thread_name", "pid": \d+, "tid": 1073741824, "args": \{"name": "partition"\}')
_STRETCH: Final = re.compile(
    rb'"cat": "partition", "name": "[^"\n]*", [^\n]*"ts": (\d+)\.(\d{3}), "dur": (\d+)\.(\d{3})\}'
)


def unsaid_windows(path: Path, *, chunk_bytes: int = CHUNK_BYTES) -> int:
    """Windows of a file that is an export of ours; 0 of any other.

    Args:
        path: a Chrome JSON or JSON.gz without the member of ``chrome_member``. A file that is no export is read at its head only.
        chunk_bytes: text looked at at once.
    """
    chunks = FileText(path, chunk_bytes=chunk_bytes, first_bytes=_HEAD_BYTES).chunks()
    text = next(chunks, b"")
    if _NAMED.search(text[:_HEAD_BYTES]) is None:
        return 0
    count, end, more = 0, -1, True
    while more:
        chunk = next(chunks, None)
        more = chunk is not None
        whole = text.rfind(b"\n") + 1 if more else len(text)  # a row is a line
        found = np.array(_STRETCH.findall(text, 0, whole)).reshape(-1, 4).astype(np.int64)
        if len(found):
            begins = found[:, 0] * 1000 + found[:, 1]
            ends = begins + found[:, 2] * 1000 + found[:, 3]
            count += int((begins != np.append(end, ends[:-1])).sum())
            end = int(ends[-1])
        text = text[whole:] + (chunk or b"")
    return count
