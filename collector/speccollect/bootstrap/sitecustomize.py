"""Reaches every Python process of a server that `speccollect run` starts, spawned ranks included.

Python imports the first ``sitecustomize`` it finds; this one stands first on PYTHONPATH, loads the one it hides, and
waits for the server's package. Helper processes (resource trackers, tokenizers) pay for one small import hook.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType


def _load_hidden() -> None:
    """Run the sitecustomize that this one hides, if the environment has one."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if os.path.abspath(path or os.curdir) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _wait_for_servers() -> None:
    """Hook a server's modules when its package is imported; the entry point's own call does no harm."""
    import wrapt

    def sglang(_: ModuleType) -> None:
        from speccollect.plugin import install_sglang

        install_sglang()

    def vllm(_: ModuleType) -> None:
        from speccollect.plugin import install_vllm

        install_vllm()

    wrapt.register_post_import_hook(sglang, "sglang")
    wrapt.register_post_import_hook(vllm, "vllm")


_load_hidden()
if os.environ.get("SPECANALYZE_DIR") or os.environ.get("SPECANALYZE") == "1":
    try:
        _wait_for_servers()
    except ImportError as error:
        sys.stderr.write(f"speccollect: not loaded into process {os.getpid()}: {error}\n")
