"""GPUs of this host as NVML tells them: model, links, clocks, power. Null where NVML or its Python package is missing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final

_MAX_LINKS: Final = 18  # NVLinks of one GPU, Hopper and Blackwell

_TOPOLOGY: Final = {
    0: "same board",
    10: "one PCIe switch",
    20: "several PCIe switches",
    30: "one host bridge",
    40: "one CPU",
    50: "across CPUs",
}


def _none() -> dict[str, Any]:
    return {"driver": None, "gpu": None, "gpu_count": None, "gpus": None, "links": None}


def gpu_facts() -> dict[str, Any]:
    """Keys ``driver``, ``gpu`` (model), ``gpu_count``, ``gpus`` (one entry each) and ``links`` (one entry a pair).

    Clocks in MHz, power in mW, memory in bytes.
    """
    try:
        import pynvml as nvml
    except ImportError:
        return _none()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return _none()
    try:
        return _read(nvml)
    except nvml.NVMLError:
        return _none()
    finally:
        nvml.nvmlShutdown()


def _read(nvml: Any) -> dict[str, Any]:
    def ask(call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            answer = call(*arguments)
        except nvml.NVMLError:
            return None
        return answer.decode() if isinstance(answer, bytes) else answer

    count = nvml.nvmlDeviceGetCount()
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
    gpus = []
    for handle in handles:
        memory = ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        links = [ask(nvml.nvmlDeviceGetNvLinkState, handle, link) for link in range(_MAX_LINKS)]
        gpus.append(
            {
                "name": ask(nvml.nvmlDeviceGetName, handle),
                "memory": getattr(memory, "total", None),
                "nvlinks": None if all(state is None for state in links) else sum(bool(state) for state in links),
                "power_limit": ask(nvml.nvmlDeviceGetEnforcedPowerLimit, handle),
                "clock_sm": ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
                "clock_sm_max": ask(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM),
                "clock_memory": ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
                "ecc": ask(nvml.nvmlDeviceGetEccMode, handle),
                "mig": ask(nvml.nvmlDeviceGetMigMode, handle),
            }
        )
    pairs = []
    for first, second in itertools.combinations(range(count), 2):
        level = ask(nvml.nvmlDeviceGetTopologyCommonAncestor, handles[first], handles[second])
        status = ask(nvml.nvmlDeviceGetP2PStatus, handles[first], handles[second], nvml.NVML_P2P_CAPS_INDEX_NVLINK)
        pairs.append(
            {
                "gpus": [first, second],
                "nvlink": None if status is None else status == nvml.NVML_P2P_STATUS_OK,
                "path": _TOPOLOGY.get(level, None if level is None else str(level)),
            }
        )
    names = sorted({gpu["name"] for gpu in gpus if gpu["name"]})
    return {
        "driver": ask(nvml.nvmlSystemGetDriverVersion),
        "gpu": names[0] if len(names) == 1 else names or None,
        "gpu_count": count,
        "gpus": gpus,
        "links": pairs,
    }
