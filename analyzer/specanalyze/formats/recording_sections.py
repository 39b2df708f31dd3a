"""Shapes of a trace's metadata sections, as far as readers rely on them; other members may hold anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from specanalyze.formats.plain_text import plain_document
from specschema.errors import TraceError

MOST_RANKS: Final = 1 << 20
_BIG: Final = 2**62


def _object(value: Any) -> bool:
    return isinstance(value, dict)


def _list(value: Any) -> bool:
    return isinstance(value, list)


def _objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, dict) for v in value)


def _object_of_objects(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(v, dict) for v in value.values())


def _object_of_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(v is None or isinstance(v, (str, int, float)) for v in value.values())


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _integer(value: Any) -> bool:
    return type(value) is int and -_BIG <= value <= _BIG


def _integer_list(value: Any) -> bool:
    return isinstance(value, list) and all(_integer(v) for v in value)


def _rank(value: Any) -> bool:
    return type(value) is int and -1 <= value < MOST_RANKS


def _row_groups(value: Any) -> bool:
    return _integer_list(value) and len(value) == 2 and min(value) >= 0


_SHAPES: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "recording": (_object, "an object"),
    "recording.windows": (_objects, "a list of objects"),
    "recording.warmups": (_objects, "a list of objects"),
    "recording.warnings": (_list, "a list"),
    "recording.problems": (_list, "a list"),
    "recording.missing_ranks": (_list, "a list"),
    "recording.incomplete_ranks": (_list, "a list"),
    "recording.totals": (_object_of_objects, "an object of objects"),
    "recording.device": (_text, "text"),
    "recording.started_ns": (_integer, "a whole number"),
    "clock": (_object, "an object"),
    "ranks": (_objects, "a list of objects"),
    "environment": (_object, "an object"),
    "environment.variables": (_object_of_texts, "an object of texts"),
    "environment.links": (_list, "a list"),
    "environment.gpus": (_list, "a list"),
}
"""Member -> test of its value, and what it should be. A member that is missing or null is fine."""

_IN_LISTS: Final[Mapping[str, Mapping[str, tuple[Callable[[Any], bool], str]]]] = {
    "recording.windows": {
        "rank": (_rank, "a rank"),
        "window": (_integer, "a whole number"),
        "device_records": (_integer, "a whole number"),
        "graph_replays": (_integer, "a whole number"),
        "start_ns": (_integer, "a whole number"),
        "end_ns": (_integer, "a whole number"),
        "read_ns": (_integer_list, "a list of whole numbers"),
    },
    "recording.warmups": {"rank": (_rank, "a rank"), "warmup": (_integer_list, "a list of whole numbers")},
    "ranks": {
        "rank": (_rank, "a rank"),
        "key": (_text, "text"),
        "host": (_text, "text"),
        "device": (_text, "text"),
        "world_size": (_rank, "a count of ranks"),
        "row_groups": (_row_groups, "first row group and count"),
    },
    "recording.totals": {
        "completion_tokens": (_integer, "a whole number"),
        "difference": (_integer, "a whole number"),
    },
}


def checked(sections: Mapping[str, Any], file: str) -> dict[str, Any]:
    """The sections, with plain texts.

    Args:
        sections: of ``specschema.metadata.decode``.
        file: the file's name, for the error.

    Raises:
        TraceError: a member that readers rely on has another shape.
    """
    for name, (fits, what) in _SHAPES.items():
        value = _member(sections, name)
        if value is None:
            continue
        if not fits(value):
            raise TraceError(f"{file}: metadata {name} is not {what}: damaged, or not written by this tool")
        for number, entry in enumerate(value.values() if isinstance(value, dict) else value if _list(value) else ()):
            for key, (fits_inside, what_inside) in _IN_LISTS.get(name, {}).items():
                if entry.get(key) is not None and not fits_inside(entry[key]):
                    raise TraceError(
                        f"{file}: metadata {name}[{number}].{key} is not {what_inside}: damaged, or not written by this tool"
                    )
    return {str(key): plain_document(value) for key, value in sections.items()}


def _member(sections: Mapping[str, Any], name: str) -> Any:
    value: Any = sections
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
