"""One rule of the kernel-class table."""

from __future__ import annotations

from typing import NamedTuple


class KernelRule(NamedTuple):
    """Names that a pattern finds, the class they belong to and where they come from.

    ``pattern`` is searched without regard to case: in the function's qualified name (no return type, template arguments
    or parameters; see kernel_function), or in the whole name where the function says nothing, as in
    ``cutlass::device_kernel<...>``.
    """

    pattern: str
    bucket: str
    subclass: str
    origin: str
    whole_name: bool = False
