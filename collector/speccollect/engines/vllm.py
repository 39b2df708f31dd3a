"""vLLM: not supported in this release. The entry point exists so that the answer is a clear line, not silence."""

from __future__ import annotations

import logging
from typing import Any, Final

from speccollect.hooking import Installed

logger: Final = logging.getLogger("speccollect")


def install(recorder: Any, *, version: str | None = None) -> Installed:
    """Says that vLLM can't be recorded yet, and leaves the server alone."""
    logger.warning(
        "speccollect: recording vLLM is not in this release; the server runs unchanged. "
        "Record it with vLLM's own profiler and read the files with: specanalyze import FOLDER"
    )
    return Installed()
