"""Which rank a vLLM worker is, and what its server runs with."""

from __future__ import annotations

import sys
from typing import Any, Final

from packaging.version import InvalidVersion, Version

_SECTIONS: Final = ("model_config", "parallel_config", "scheduler_config", "cache_config", "load_config")
"""Parts of vLLM's configuration whose settings have flat names on its command line."""
_NESTED: Final = ("speculative_config", "compilation_config")
"""Parts that are one JSON argument on its command line; told as ``speculative_config.method``, ..."""

_PLAIN: Final = (str, int, float, bool, type(None))
_LONGEST: Final = 128  # a list of capture sizes is worth a line, a table is not

_GROUPS: Final = {"tensor": "get_tp_group", "pipeline": "get_pp_group", "data": "get_dp_group"}


def identity_of(worker: Any) -> dict[str, Any]:
    """What ``Recorder.identify`` is told of a worker whose distributed groups are there."""
    config = worker.vllm_config
    parallel = config.parallel_config
    # each replica of plain data parallelism numbers its ranks from 0; the index stays where the rank is reset to 0
    return {
        "rank": parallel.data_parallel_index * parallel.world_size + worker.rank,
        "coordinates": _coordinates(parallel),
        "server": "vllm",
        "server_version": release_of(getattr(sys.modules.get("vllm"), "__version__", None)),
        "server_args": settings_of(config),
        "model_path": config.model_config.model,
    }


def release_of(version: str | None) -> str | None:
    """``version`` where it names a release, None for a source checkout's or none at all."""
    try:
        return None if version is None or Version(version).release < (0, 1) else version
    except InvalidVersion:
        return None


def _coordinates(parallel: Any) -> dict[str, int]:
    getters = dict(_GROUPS)
    if parallel.enable_expert_parallel:
        getters["expert"] = "get_ep_group"
    places = {name: _place(getter) for name, getter in getters.items()}
    return {name: place for name, place in places.items() if place is not None}


def _place(getter: str) -> int | None:
    """Rank within a group; None where the group is not there."""
    state = sys.modules.get("vllm.distributed.parallel_state")
    try:
        return int(getattr(state, getter)().rank_in_group)
    except (AssertionError, AttributeError):  # vLLM asserts that the group was made
        return None


def settings_of(config: Any) -> dict[str, Any]:
    """The server's arguments as resolved, by the names they have on vLLM's command line."""
    settings: dict[str, Any] = {}
    for section in (*_SECTIONS, *_NESTED):
        values = vars(getattr(config, section, None) or _Nothing())
        prefix = f"{section}." if section in _NESTED else ""
        for name, value in values.items():
            plain = _plain(value)
            if plain is not _SKIP and not name.startswith("_"):
                settings[prefix + name] = plain
    return settings


class _Nothing:
    """A part of the configuration that this server lacks."""


_SKIP: Final = object()


def _plain(value: Any) -> Any:
    """The value as metadata can hold it, or _SKIP."""
    if isinstance(value, _PLAIN):
        return value
    if hasattr(value, "name") and hasattr(type(value), "__members__"):  # an enumeration
        return value.name
    if type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        return str(value).removeprefix("torch.")
    if isinstance(value, (list, tuple)) and len(value) <= _LONGEST and all(isinstance(v, _PLAIN) for v in value):
        return list(value)
    return _SKIP
