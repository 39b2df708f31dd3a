"""The function a kernel name names: qualified, without return type, template arguments, parameters and mangling.

``void at::native::elementwise_kernel<4, silu_kernel(...)>(int)`` is an ``elementwise_kernel`` whatever its arguments
mention, so most rules of the class table look at the function alone. No demangling library is needed for that: the
leading nested name of an Itanium-mangled symbol is a run of length-prefixed identifiers.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

_ANONYMOUS: Final = re.compile(r"\(anonymous namespace\)|<unnamed>|\{anon(ymous)?\}")
_MANGLED: Final = re.compile(r"_?_Z(?:L|N[rVKO]*|)(?=\d|L\d|St|S[abios_]|S\d)", re.IGNORECASE)
_LENGTH: Final = re.compile(r"L?(\d+)")
_GLOBAL: Final = "_global__n_"


def _mangled_function(name: str, position: int) -> str:
    """Identifiers of the leading nested name from ``position`` on, joined with ``::``."""
    identifiers: list[str] = []
    if name[position : position + 2].lower() == "st":
        identifiers.append("std")
        position += 2
    while (match := _LENGTH.match(name, position)) is not None:
        digits = match.group(1)
        if int(digits) == 0:
            break
        start = match.end()
        identifier = name[start : start + int(digits)]
        if not identifier.lower().startswith(_GLOBAL):
            identifiers.append(identifier)
        position = start + int(digits)
    return "::".join(identifiers)


def _plain_function(name: str) -> str:
    """Function of a name that is not mangled: the last word outside angle brackets, before the parameter list."""
    outside: list[str] = []
    angle = 0
    round_ = 0
    for previous, character in zip(" " + name, name, strict=False):
        if angle and (character == "(" or round_):
            # An expression or a type in parentheses among the template arguments: its "<" and ">" may be comparisons.
            round_ += {"(": 1, ")": -1}.get(character, 0)
        elif character == "<":
            angle += 1
        elif character == ">" and angle and previous != "-":
            angle -= 1
        elif not angle:
            if character == "(" and outside:
                break
            outside.append(character)
    words = "".join(outside).split()
    return words[-1].strip(":*&").replace("::::", "::") if words else ""


@cache
def function_of(name: str) -> str:
    """Qualified function name of a kernel.

    Args:
        name: kernel name as a profiler wrote it: demangled, mangled, short or Triton's.

    Returns:
        ``sglang::cross_device_reduce_1stage`` for either form of it; anonymous namespaces are left out. The name itself
        where nothing else can be made of it.
    """
    match = _MANGLED.match(name)
    if match is not None:
        return _mangled_function(name, match.end()) or name
    return _plain_function(_ANONYMOUS.sub("", name)) or name
