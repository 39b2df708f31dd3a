"""vLLM: not supported in this release. The entry point exists so that the answer is a clear line, not silence."""

from __future__ import annotations

import logging
from typing import Any, Final

import wrapt

from speccollect.hooking import Installed

logger: Final = logging.getLogger("speccollect")


ENGINE_MODULE: Final = "vllm.v1.engine.core"
"""What vLLM's engine process imports, and no other server does."""


def install(recorder: Any, *, version: str | None = None) -> Installed:
    """Says, once vLLM's engine is really loaded, that it can't be recorded yet, and leaves the server alone."""
    wrapt.register_post_import_hook(_say, ENGINE_MODULE)
    return Installed()


def _say(module: Any) -> None:
    logger.warning(
        "speccollect: recording vLLM is not in this release; the server runs unchanged. "
        "Record it with vLLM's own profiler and read the files with: specanalyze import FOLDER"
    )
