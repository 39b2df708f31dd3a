"""Records a speculative worker from inside its server. Costs nothing until armed, and never breaks serving."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

__version__: Final = "0.1.0"

if TYPE_CHECKING:
    from speccollect.offline import record as record

__all__ = ["__version__", "record"]


def __getattr__(name: str) -> Any:
    # imported late: a server loads this package in every process, also in those that record nothing
    if name == "record":
        from speccollect.offline import record

        return record
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
