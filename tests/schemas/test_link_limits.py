"""Ceilings of links by GPU model."""

from __future__ import annotations

import pytest

from specschema.link_limits import link_limit


@pytest.mark.parametrize(
    ("gpu", "nvlink", "expected"),
    [
        ("NVIDIA H200", True, ("NVLink 4", 450.0)),
        ("NVIDIA H100 80GB HBM3", True, ("NVLink 4", 450.0)),
        ("NVIDIA H100 PCIe", True, ("NVLink 4 bridge", 300.0)),
        ("NVIDIA H100 NVL", True, ("NVLink 4 bridge", 300.0)),
        ("NVIDIA H20", True, ("NVLink 4", 450.0)),
        ("NVIDIA H800", True, ("NVLink 4", 200.0)),
        ("NVIDIA B300 SXM6 AC", True, ("NVLink 5", 900.0)),
        ("NVIDIA A100-SXM4-80GB", True, ("NVLink 3", 300.0)),
        ("NVIDIA H200", False, ("PCIe 5.0 x16", 64.0)),
        ("NVIDIA L40S", False, ("PCIe 4.0 x16", 32.0)),
        ("NVIDIA GeForce RTX 4090", False, ("PCIe 4.0 x16", 32.0)),
    ],
)
def test_listed_models(gpu: str, nvlink: bool, expected: tuple[str, float]) -> None:
    limit = link_limit(gpu, nvlink)
    assert limit is not None
    assert (limit.link, limit.gb_per_s) == expected


def test_what_is_not_known_has_no_limit() -> None:
    assert link_limit("NVIDIA L40S", True) is None
    assert link_limit("NVIDIA H200", None) is None
    assert link_limit(None, True) is None
    assert link_limit("AMD Instinct MI300X", True) is None
