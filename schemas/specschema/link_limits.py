"""What one GPU can send to its peers at most, by GPU model: the ceiling that bus bandwidths are held against.

Figures are one direction, a GPU, all links together, in GB/s (1e9 bytes), as NVIDIA's data sheets print them halved (they print
both directions added). A measured bus bandwidth reaches 70 to 85 % of them at best; small messages are far below.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class LinkLimit(NamedTuple):
    """Ceiling of one GPU, one direction."""

    link: str
    """``NVLink 4``, ``PCIe 5.0 x16``, ..."""
    gb_per_s: float
    origin: str


_NVLINK: Final = (
    (r"\b(B300|GB300|B200|GB200|B100)\b", LinkLimit("NVLink 5", 900.0, "Blackwell data sheet: 1.8 TB/s")),
    (r"\bH800\b", LinkLimit("NVLink 4", 200.0, "H800 data sheet: 400 GB/s")),
    (r"\bH100 NVL\b|\bH200 NVL\b", LinkLimit("NVLink 4 bridge", 300.0, "H100 NVL data sheet: 600 GB/s")),
    (r"\bH100 PCIe\b", LinkLimit("NVLink 4 bridge", 300.0, "H100 PCIe data sheet: 600 GB/s")),
    (r"\b(H100|H200|H20|GH200)\b", LinkLimit("NVLink 4", 450.0, "Hopper data sheet: 900 GB/s")),
    (r"\bA800\b", LinkLimit("NVLink 3", 200.0, "A800 data sheet: 400 GB/s")),
    (r"\bA100\b", LinkLimit("NVLink 3", 300.0, "A100 data sheet: 600 GB/s")),
    (r"\bV100\b", LinkLimit("NVLink 2", 150.0, "V100 data sheet: 300 GB/s")),
)
_PCIE: Final = (
    (
        r"\b(B300|B200|B100|H100|H200|H800|H20|RTX PRO 6000|RTX 50[789]0)\b",
        LinkLimit("PCIe 5.0 x16", 64.0, "data sheets: PCIe Gen5 x16, 128 GB/s"),
    ),
    (
        r"\b(A100|A800|A10G?|A30|A40|A6000|L4|L40S?|L20|RTX 6000 Ada|RTX [34]0[6789]0)\b",
        LinkLimit("PCIe 4.0 x16", 32.0, "data sheets: PCIe Gen4 x16, 64 GB/s"),
    ),
    (r"\b(V100|T4)\b", LinkLimit("PCIe 3.0 x16", 16.0, "data sheets: PCIe Gen3 x16, 32 GB/s")),
)


def link_limit(gpu: str | None, nvlink: bool | None) -> LinkLimit | None:
    """The ceiling between GPUs of a model.

    Args:
        gpu: model name as the driver gives it (``NVIDIA H200``).
        nvlink: whether NVLink joins them; None where the recording does not say.

    Returns:
        The limit; None where the model is not listed or the link is not known.
    """
    if gpu is None or nvlink is None:
        return None
    return next((limit for pattern, limit in (_NVLINK if nvlink else _PCIE) if re.search(pattern, gpu)), None)
