"""Kernels that move data between ranks: which collective, algorithm, protocol, element type and library, by name alone.

``describe`` reads what a name tells; which kernels these are is the table in ``collective_families``. A name never tells
the size or the group: those come from the framework or the node map.
"""

from __future__ import annotations

import itertools
import re
from functools import cache
from typing import Final, NamedTuple

from specschema import pattern_words
from specschema.collective_families import FAMILIES
from specschema.collective_family import ALLREDUCE, Family
from specschema.first_match import FirstMatch
from specschema.kernel_function import function_of

__all__ = ["ALLREDUCE", "FAMILIES", "CollectiveKernel", "describe", "family_of"]


class CollectiveKernel(NamedTuple):
    """What a kernel's name says of the collective it runs. None: the name does not say; all None: no communication."""

    operation: str | None
    algorithm: str | None
    protocol: str | None
    dtype: str | None
    library: str | None


_NCCL_ALGORITHMS: Final = {
    "ring": "ring",
    "tree": "tree",
    "collnet_direct": "collnet direct",
    "collnet_chain": "collnet chain",
    "collnet": "collnet",
    "nvls_tree": "nvls tree",
    "nvls": "nvls",
    "pat": "pat",
}
_NCCL_ALGORITHM: Final = re.compile(
    r"_(ring|tree|collnet_direct|collnet_chain|collnet|nvls_tree|nvls|pat)(?=_|$)|nccl[a-z]+?(ring|"
    r"tree|collnet)(?=ll|simple|kernel)",
    re.IGNORECASE,
)
_NCCL_PROTOCOL: Final = re.compile(
    r"_(ll128|ll|simple)(?=_|$)|(?:ring|tree|collnet)(ll128|ll|simple)kernel", re.IGNORECASE
)
_SYMMETRIC_ALGORITHM: Final = re.compile(
    r"devkernel_(?:allreduce|allgather|reducescatter)_(\w+?)(?=_(?:sum|min|max|avg|prod)|$)", re.IGNORECASE
)
_PROTOCOL: Final = re.compile(r"allreduce(push|pull)impl|\bnvlink_(push|pull)_kernel|(lamport)", re.IGNORECASE)
"""What the engines' own kernels call their way of moving data: in the function or the class it is a template of."""

_TOKEN: Final = re.compile(r"[A-Za-z0-9_:]+")
_DTYPES: Final = {
    "bf16": "bf16",
    "__nv_bfloat16": "bf16",
    "__hip_bfloat16": "bf16",
    "c10::bfloat16": "bf16",
    "nv_bfloat16": "bf16",
    "f16": "f16",
    "half": "f16",
    "__half": "f16",
    "c10::half": "f16",
    "f32": "f32",
    "float": "f32",
    "f64": "f64",
    "double": "f64",
    "f8e4m3": "f8e4m3",
    "f8e5m2": "f8e5m2",
    "i8": "i8",
    "int8_t": "i8",
    "u8": "u8",
    "uint8_t": "u8",
    "i32": "i32",
    "u32": "u32",
    "i64": "i64",
    "u64": "u64",
}
_MANGLED_DTYPES: Final = (
    ("13__nv_bfloat16", "bf16"),
    ("n3c108bfloat16", "bf16"),
    ("6__half", "f16"),
    ("n3c104half", "f16"),
)


_MATCH: Final = FirstMatch(FAMILIES, pattern_words.FAMILIES)


def family_of(name: str) -> Family | None:
    """The family whose kernels bear this name, or None: not known to move data between ranks."""
    index = _MATCH.of(name, function_of(name))
    return None if index is None else FAMILIES[index]


def _nccl_dtype(function: str) -> str | None:
    """Element type among the words of an NCCL function name; int8_t and uint8_t hold an underscore of their own."""
    words = function.lower().split("_")
    joined = [first + "_" + second for first, second in itertools.pairwise(words)]
    for word in [*joined, *words]:
        if word in _DTYPES:
            return _DTYPES[word]
    return None


def _template_dtype(name: str) -> str | None:
    """First element type among the template arguments or parameters, for kernels that are templates of it."""
    lowered = name.lower()
    for mangled, dtype in _MANGLED_DTYPES:
        if lowered.startswith("_z") and mangled in lowered:
            return dtype
    start = lowered.find("<")
    for token in _TOKEN.findall(lowered[start:]) if start >= 0 else ():
        if token in _DTYPES:
            return _DTYPES[token]
    return None


@cache
def describe(name: str) -> CollectiveKernel:
    """What a communication kernel's name says.

    Args:
        name: kernel name, demangled or mangled.

    Returns:
        Operation (``allreduce``, ``allgather``, ``dispatch``, ...), algorithm (``ring``, ``tree``, ``one-shot``,
        ``multimem``, or NCCL's own token such as ``RSxLDMC_AGxSTMC``), protocol (``LL``, ``LL128``, ``SIMPLE``,
        ``lamport``, ``push``, ...), element type (``bf16``, ...) and library; None where the name does not say.
    """
    family = family_of(name)
    if family is None:
        return CollectiveKernel(None, None, None, None, None)
    function = function_of(name)
    algorithm, protocol, dtype = family.algorithm, family.protocol, None
    if family.library == "nccl":
        found = _NCCL_ALGORITHM.search(function)
        algorithm = _NCCL_ALGORITHMS[(found.group(1) or found.group(2)).lower()] if found else None
        found = _NCCL_PROTOCOL.search(function)
        protocol = (found.group(1) or found.group(2)).upper() if found else None
        dtype = _nccl_dtype(function)
    elif family.library == "nccl symmetric":
        found = _SYMMETRIC_ALGORITHM.search(function)
        algorithm = found.group(1) if found else None
        protocol = "LL" if algorithm and "ll" in re.split(r"[x_]", algorithm.lower()) else None
        dtype = _nccl_dtype(function)
    else:
        dtype = _template_dtype(name)
    if protocol is None:
        found = _PROTOCOL.search(name)
        protocol = (found.group(1) or found.group(2) or found.group(3)).lower() if found else None
    return CollectiveKernel(family.operation, algorithm, protocol, dtype, family.library)
