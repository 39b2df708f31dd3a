"""Loaded by every process of an engine whose PYTHONPATH names this folder: Triton's interpreter passes for a backend.

vLLM's V2 runner needs Triton with a backend for CPUs, which the published one lacks. TRITON_INTERPRET=1 makes the kernels
plain Python; vLLM asks for the backend's name alone.
"""

from types import ModuleType, SimpleNamespace

import wrapt


def _name_a_backend(module: ModuleType) -> None:
    module.backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))


wrapt.register_post_import_hook(_name_a_backend, "triton.backends")
