"""A family of kernels that move data between ranks: one library, one operation, the names it goes by."""

from __future__ import annotations

from typing import Final, NamedTuple

ALLREDUCE: Final = "allreduce"


class Family(NamedTuple):
    """Kernels of one library that do one thing.

    ``pattern`` is searched, without regard to case, in the function's qualified name, or in the whole name where a
    template argument says which collective it is. ``None`` = the name does not say.
    """

    pattern: str
    library: str
    operation: str | None
    algorithm: str | None = None
    protocol: str | None = None
    origin: str = ""
    whole_name: bool = False
