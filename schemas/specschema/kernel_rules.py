"""The kernel-class table: every rule in the order in which it is tried, in parts by who writes the kernels."""

from __future__ import annotations

from typing import Final

from specschema.communication import ALLREDUCE, FAMILIES
from specschema.kernel_rule import KernelRule
from specschema.kernel_rules_engines import BOOKKEEPING, ELEMENTWISE
from specschema.kernel_rules_gemm import GEMM
from specschema.kernel_rules_libraries import GENERATED, LIBRARIES
from specschema.kernel_rules_model import ATTENTION, MOE

__all__ = ["RULES", "KernelRule"]

COMMUNICATION: Final = tuple(
    KernelRule(
        family.pattern,
        "allreduce" if family.operation == ALLREDUCE else "other_comm",
        family.operation or "unknown",
        family.origin,
        family.whole_name,
    )
    for family in FAMILIES
)

RULES: Final = (*GENERATED, *COMMUNICATION, *LIBRARIES, *BOOKKEEPING, *MOE, *ATTENTION, *ELEMENTWISE, *GEMM)
"""All rules; the first that matches decides. Generated code comes first, since Inductor writes the names of the fused
operators into its kernels' names; communication before everything that computes, since a fused kernel that contains an
all-reduce is an all-reduce."""
