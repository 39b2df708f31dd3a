"""Values that a server makes anew for each run: ports, process ids, sockets, temporary paths, names of shared memory, identifiers.

Two runs of one setting differ in them. They are told from settings by their names where the name says it (a port), else by their form
within the value, so that whatever stands around such a part is still compared.
"""

from __future__ import annotations

import re
from typing import Final

_NAMES: Final = re.compile(
    r"SGLANG_RUN_ID|NCCL_COMM_ID|clocks\.sm_mhz|clocks\.throttle.*|host.*|gpu\.(?:uuid|index|serial|pci).*|gpu_memory_bytes|"
    r"server\.args\.(?:host|dist_init_addr|master_addr|random_seed|seed|(?:.*[._])?(?:instance|engine|run|session)_id)|"
    r"(?:SGLANG|VLLM)_(?:\w+_)?(?:HOST|IP|HOST_IP)|"
    r"(?:.*[._])?(?:port|ports|port_list|pid)",
    re.IGNORECASE,
)
"""Facts whose whole value is of the run: addresses, momentary clocks, seeds that are drawn where none is given."""

_NEVER: Final = re.compile(
    r".*(?:model|tokenizer|checkpoint|weight|revision|digest|lora|adapter|version|commit).*", re.IGNORECASE
)
"""What is loaded and which version of it may well be named by an identifier or a temporary path: such a value is a setting."""

_UUID: Final = (
    r"(?<![0-9a-fA-F-])(?<!GPU-)(?<!MIG-)[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![0-9a-fA-F-])"
)
_HEXADECIMAL: Final = re.compile(r"(?<![0-9a-fA-F])[0-9a-f]{32}(?![0-9a-fA-F])")
_PARTS: Final = (
    (re.compile(_UUID), "<uuid>"),
    (re.compile(r"ipc://\S+"), "<socket>"),
    (re.compile(r"(?<=/)tmp[a-z0-9_]{8}(?![^/,\s])"), "<temporary path>"),  # tempfile.mkdtemp
    (re.compile(r"(?<=/)tmp\.[A-Za-z0-9]{6,12}(?![^/,\s])"), "<temporary path>"),  # mktemp
    (re.compile(r"(?<![A-Za-z0-9])psm_[0-9a-f]{8}(?![A-Za-z0-9])"), "<shared memory>"),  # multiprocessing.shared_memory
    (re.compile(r"(?<=://)([^\s:/,]+):\d{1,5}(?!\d)"), r"\1:<port>"),
    (re.compile(r"(?<![\d.])(\d{1,3}(?:\.\d{1,3}){3}|localhost):\d{1,5}(?!\d)"), r"\1:<port>"),
)
_SAYS_SO: Final = re.compile(r"shm|shared_?mem|sock|ipc|session|uuid|nonce|(?:run|instance|engine)_?id", re.IGNORECASE)
"""Thirty-two hexadecimal digits are a uuid without dashes or the digest of something: beside such a word they are the former."""
_NUMBERED: Final = re.compile(r"(?<=[A-Za-z][._-])\d{2,10}(?=[._-]|$)")
"""``/tmp/server_4711.sock``: the number of a process within the name of a socket or of shared memory."""


def of_the_run(name: str, before: str, after: str) -> bool:
    """Whether a fact that differs between two recordings differs only in what is made anew for each run.

    Args:
        name: dotted name, or a variable's own.
        before, after: its two values as text; different.
    """
    if _NAMES.fullmatch(name):
        return True
    if _NEVER.fullmatch(name):
        return False
    one, other = _without_parts(name, before), _without_parts(name, after)
    return one == other and one != before


def _without_parts(name: str, value: str) -> str:
    """The value with a word in place of each part that is made anew."""
    said = _SAYS_SO.search(name) or _SAYS_SO.search(value)
    for pattern, word in _PARTS:
        value = pattern.sub(word, value)
    if said:
        value = _NUMBERED.sub("<pid>", _HEXADECIMAL.sub("<uuid>", value))
    return value
