"""SGLang: installs the hook points of the release that runs. Costs nothing in processes that are no scheduler.

Every SGLang process loads the plugin. The hooks wait for the scheduler's and the workers' modules; the wrappers act
only inside ``Scheduler``'s loop, which runs in the scheduler processes (one per rank) alone.
"""

from __future__ import annotations

import importlib.metadata
import logging
from typing import Final

from packaging.version import InvalidVersion, Version

from speccollect.engines.sglang_cycle import CycleHooks
from speccollect.engines.sglang_points import OLDEST, points
from speccollect.hooks.points import Installed, Recorder
from speccollect.hooks.points import install as install_points

logger: Final = logging.getLogger("speccollect")


def install(recorder: Recorder, *, version: str | None = None) -> Installed:
    """Hooks SGLang.

    Args:
        recorder: told of cycles, phases, accept lengths and requests.
        version: SGLang's release; None: as its package says.

    Returns:
        What was hooked; ``remove()`` undoes it.
    """
    version = version or installed_version()
    if version is not None and Version(version) < Version(OLDEST):
        logger.warning("speccollect: SGLang %s is older than %s, the oldest release known", version, OLDEST)
    if version is not None and Version(version) < Version("0.5.4"):
        # These releases run plain decoding on a thread of its own, beside the loop that the hooks follow.
        logger.warning(
            "speccollect: to record plain decoding, start SGLang %s with --disable-overlap-schedule", version
        )
    return install_points(points(CycleHooks(recorder)), recorder, version=version)


def installed_version() -> str | None:
    """SGLang's release; None when it has none to tell (a source checkout calls itself 0.0.0.dev0)."""
    try:
        version = importlib.metadata.version("sglang")
        return None if Version(version).release == (0, 0, 0) else version
    except (importlib.metadata.PackageNotFoundError, InvalidVersion):
        return None
