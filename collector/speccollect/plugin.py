"""Entry points that servers load in every process. They do nothing unless the user switched the collector on.

The promise: nothing is ever raised into the server, nothing is imported that it did not import itself (torch waits for
the first recording), and calling an entry point twice is the same as calling it once.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
from collections.abc import Mapping
from typing import Final

from speccollect.config import switched_on

logger = logging.getLogger("speccollect")

TEARDOWN_VARIABLE: Final = "TEARDOWN_CUPTI"
"""Read by Kineto when it first starts: detach CUPTI after each window. Without it, launching a graph of 720 nodes
stays at 150 to 290 us instead of 7 for the rest of the process's life."""

_installed: set[str] = set()
_lock = threading.Lock()


def _install(engine: str, environment: Mapping[str, str]) -> bool:
    """Hook an engine once; whether its hooks are in place now."""
    if not switched_on(environment):
        return False
    with _lock:
        if engine in _installed:
            return True
        os.environ.setdefault(TEARDOWN_VARIABLE, "1")
        try:
            from speccollect.rank.recorder import get_recorder

            module = importlib.import_module(f"speccollect.engines.{engine}")
            module.install(get_recorder())
        except Exception:  # the hook boundary: a server must start with a broken collector
            logger.exception("speccollect could not hook %s; the server is not affected", engine)
            return False
        _installed.add(engine)
        return True


def install_sglang() -> None:
    """Entry point of the group ``sglang.srt.plugins``."""
    _install("sglang", os.environ)
    install_node_map()


def install_vllm() -> None:
    """Entry point of the group ``vllm.general_plugins``."""
    _install("vllm", os.environ)
    install_node_map()


def install_embedded() -> None:
    """What the ranks of the embedded engine load (`speccollect demo`)."""
    _install("embedded", os.environ)
    install_node_map()


def install_all() -> None:
    """What `speccollect run` loads in every Python process it reaches: hooks wait for the engines' modules."""
    install_sglang()
    install_vllm()


def install_node_map() -> None:
    """Note what CUDA graphs are made of; servers capture them at start, long before anything is armed."""
    if not switched_on(os.environ):
        return
    with _lock:
        if "nodemap" in _installed:
            return
        _installed.add("nodemap")
    try:
        from speccollect.nodemap import capture
        from speccollect.rank.recorder import get_recorder

        capture.install(get_recorder())
    except Exception:  # the hook boundary, as above
        logger.exception("speccollect could not install the node map; the server is not affected")
