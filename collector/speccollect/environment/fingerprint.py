"""What ran: hardware, software and settings, so that two traces can be told apart by more than their times."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from speccollect.control.process import host_hash
from speccollect.environment.gpu_facts import gpu_facts
from speccollect.environment.secrets_filter import clean_arguments, clean_mapping

VARIABLE_PREFIXES: Final = (
    *("NCCL_", "CUDA_", "SGLANG_", "SGL_", "VLLM_", "TORCH_NCCL_", "OMP_", "PYTORCH_CUDA_"),
    *("TEARDOWN_CUPTI", "SPECANALYZE_BACKEND"),  # what decides how much a window costs afterwards
)
"""Environment variables that change what a server does; all others are nobody's business."""

PACKAGES: Final = (
    "sglang",
    "sglang-kernel",
    "sgl-kernel",
    "vllm",
    "flashinfer-python",
    "triton",
    "transformers",
    "nvtx",
    "cuda-bindings",
    "deep-gemm",
)
"""Packages whose version changes what runs on the device."""

_MODEL_OPTIONS: Final = ("--model-path", "--model")
_CONFIG_KEYS: Final = (
    "architectures",
    "model_type",
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "num_experts",
    "n_routed_experts",
    "num_experts_per_tok",
    "vocab_size",
    "torch_dtype",
)


_ARGUMENTS_AT_ONCE: Final = 32
"""Of a server's some three hundred; 10 us each."""


def environment(
    server: Mapping[str, Any],
    variables: Mapping[str, str] | None = None,
    *,
    pause: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """The metadata section ``environment``. Null is written for what can't be known here, never a guess.

    Args:
        server: what the engine's hooks told: ``server``, ``server_version``, ``server_args``, ``model_path``.
        variables: environment to read; the process's own by default.
        pause: called now and then to let other threads have the interpreter.

    Returns:
        JSON-serialisable; no credential, no prompt, host names hashed.
    """
    arguments = server.get("server_args")
    command_line = sys.argv[1:]
    static = static_facts()
    name = server.get("server") or next((n for n in ("sglang", "vllm") if n in sys.modules), None)
    return {
        **static,
        **gpu_facts(),
        "server": name,
        "server_version": server.get("server_version") or static["packages"].get(str(name)),
        "server_args": _cleaned(arguments, pause) if arguments is not None else None,
        "command_line": clean_arguments(command_line),
        "model": model_facts(server.get("model_path") or _model_of(command_line)),
        "variables": chosen_variables(os.environ if variables is None else variables),
    }


def _cleaned(arguments: Mapping[str, Any], pause: Callable[[], None]) -> dict[str, Any]:
    cleaned: dict[str, Any] = {}
    names = list(arguments)
    for at in range(0, len(names), _ARGUMENTS_AT_ONCE):
        cleaned |= clean_mapping({name: arguments[name] for name in names[at : at + _ARGUMENTS_AT_ONCE]})
        pause()
    return cleaned


@functools.cache
def static_facts() -> dict[str, Any]:
    """What does not change while a process runs, read once: it takes tens of milliseconds of the interpreter."""
    torch = sys.modules.get("torch")
    return {
        "device": "cuda" if torch is not None and torch.cuda.is_available() else "cpu",
        "host": host_hash(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "torch": getattr(torch, "__version__", None),
        "cuda": getattr(getattr(torch, "version", None), "cuda", None),
        "nccl": nccl_facts(torch),
        "packages": package_versions(),
    }


def chosen_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """The NCCL_, CUDA_, SGLANG_ and VLLM_ variables, without those that look like secrets."""
    chosen = {name: value for name, value in sorted(variables.items()) if name.startswith(VARIABLE_PREFIXES)}
    return clean_mapping(chosen)


def package_versions() -> dict[str, str]:
    """Versions of PACKAGES that are installed."""
    versions = {package: _version(package) for package in PACKAGES}
    return {package: version for package, version in versions.items() if version is not None}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def loaded_libraries(word: str, maps: str = "/proc/self/maps") -> list[str]:
    """Paths of the shared libraries in this process whose file name contains ``word``."""
    try:
        with open(maps, encoding="utf-8", errors="replace") as file:
            paths = {line.split(maxsplit=5)[5].strip() for line in file if word in line and "/" in line}
    except (OSError, IndexError):
        return []
    return sorted(p for p in paths if word in os.path.basename(p))


def nccl_facts(torch: Any) -> dict[str, Any]:
    """The NCCL library really loaded (a preloaded one may shadow torch's own), its version, and torch's."""
    facts: dict[str, Any] = {"path": None, "version": None, "torch_version": None}
    paths = loaded_libraries("libnccl.so")
    if paths:
        facts["path"] = paths[0] if len(paths) == 1 else paths
        facts["version"] = nccl_version(paths[0])
    if torch is not None and getattr(torch.version, "cuda", None) is not None:
        try:
            version = torch.cuda.nccl.version()
        except (AttributeError, RuntimeError):
            return facts
        facts["torch_version"] = ".".join(map(str, version)) if isinstance(version, tuple) else str(version)
    return facts


def nccl_version(path: str) -> str | None:
    """Version an NCCL library reports of itself: 22809 -> 2.28.9."""
    number = ctypes.c_int()
    try:
        library = ctypes.CDLL(path, mode=ctypes.RTLD_LOCAL | getattr(os, "RTLD_NOLOAD", 0))
        if library.ncclGetVersion(ctypes.byref(number)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    code = number.value
    if code < 10000:
        return f"{code // 1000}.{code % 1000 // 100}.{code % 100}"
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}"


def _model_of(arguments: Sequence[str]) -> str | None:
    for index, argument in enumerate(arguments):
        name, separator, value = argument.partition("=")
        if name in _MODEL_OPTIONS:
            return value if separator else next(iter(arguments[index + 1 : index + 2]), None)
    return None


def model_facts(path: str | None) -> dict[str, Any] | None:
    """Digest of a local model's config.json and the numbers that set its cost; None where there is no such file."""
    if not path:
        return None
    file = Path(path) / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        digest = hashlib.sha256(json.dumps(config, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    except (OSError, ValueError):
        return {"name": Path(path).name, "config_digest": None}
    return {
        "name": Path(path).name,
        "config_digest": digest[:16],
        **{key: config[key] for key in _CONFIG_KEYS if key in config},
    }
