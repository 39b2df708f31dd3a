"""NVTX ranges in domain ``spec``: what Nsight Systems sees of the phases."""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import os
from pathlib import Path
from typing import Any, Final

from specschema.phases import CYCLE, range_name

logger = logging.getLogger("speccollect")

DOMAIN: Final = "spec"

INJECTION_VARIABLES: Final = ("NVTX_INJECTION64_PATH", "CUDA_INJECTION64_PATH")
"""Set in every process that a profiler such as Nsight Systems started."""


def external_profiler() -> str | None:
    """What shows that another profiler owns CUPTI in this process; None where nothing does."""
    for name in (*INJECTION_VARIABLES, "NSYS_PROFILING_SESSION_ID"):
        if os.environ.get(name):
            return name
    return None


@functools.cache
def _warn_once(message: str) -> None:
    logger.warning("%s", message)


def _version() -> str:
    try:
        return importlib.metadata.version("nvtx")
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


class NvtxRanges:
    """Pushes and pops ranges with the cycle number as payload; does nothing where no tool listens.

    About 0.6 us a range under a tool, nothing without one. Up to 0.2.11 the package's domains have no ranges of their own:
    its module functions are used, which make an object a range.
    """

    def __init__(self) -> None:
        self._domain: Any = None
        self._module: Any = None
        self._attributes: dict[str, Any] = {}
        self.depth = 0
        if os.environ.get("NVTX_INJECTION64_PATH") is None and not _injection_in_maps():
            return
        try:
            import nvtx
        except ImportError:
            _warn_once("the nvtx package is missing: Nsight Systems will show no phases (pip install nvtx)")
            return
        domain = nvtx.get_domain(DOMAIN)
        if type(domain).__name__ == "DummyDomain":
            # nvtx 0.2.12 to 0.2.17 emit nothing under Nsight Systems 2022.4 to 2024.2, without a word
            _warn_once(
                f"an NVTX tool is loaded, but nvtx {_version()} emits nothing to it: use nvtx 0.2.11, a newer "
                "Nsight Systems, or unset NVTX_DISABLE"
            )
            return
        if not hasattr(domain, "push_range"):
            self._module = nvtx
        self._domain = domain

    @property
    def listening(self) -> bool:
        """Whether a tool takes the ranges."""
        return self._domain is not None

    def push(self, name: str, cycle: int) -> None:
        """Open a range named ``spec.<name>``."""
        domain = self._domain
        if domain is None:
            return
        if self._module is not None:
            self._module.push_range(range_name(name), domain=DOMAIN, category=_category(name), payload=cycle)
            self.depth += 1
            return
        attributes = self._attributes.get(name)
        if attributes is None:
            attributes = domain.get_event_attributes(message=range_name(name), category=_category(name), payload=cycle)
            self._attributes[name] = attributes
        else:
            domain.set_event_attributes(attributes, payload=cycle)
        domain.push_range(attributes)
        self.depth += 1

    def pop(self) -> None:
        """Close the innermost range."""
        if self._domain is not None and self.depth > 0:
            self.depth -= 1
            if self._module is not None:
                self._module.pop_range(domain=DOMAIN)
            else:
                self._domain.pop_range()

    def unwind(self) -> None:
        """Close what an exception in the server left open."""
        while self.depth > 0:
            self.pop()


def _category(name: str) -> str:
    return "cycle" if name == CYCLE else "phase"


def _injection_in_maps() -> bool:
    """Whether an NVTX injection library is loaded without the variable (a tool that attached itself)."""
    try:
        # whole: a server's has thousands of lines, and the step that arms waits for it
        return b"libToolsInjection" in Path("/proc/self/maps").read_bytes()
    except OSError:
        return False
