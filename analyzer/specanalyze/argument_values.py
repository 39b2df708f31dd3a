"""Turns the words of a command line into values without pydantic, whose import costs a fifth of a small breakdown.

Typer 0.29 builds a pydantic adapter for each parameter of a call, used or not. Parameters here are texts, paths, whole numbers,
switches and lists of those. A typer without that hook, and a parameter of any other type, go typer's own way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, get_args

import typer

from specanalyze.whole_number import whole_number


def _switch(word: str) -> bool:
    raise ValueError("a switch takes no value")


def _whole(word: str) -> int:
    number = whole_number(word.removeprefix("-"))
    if number is None:
        digits = word.removeprefix("-")
        why = "is too large a number" if digits.isascii() and digits.isdecimal() else "is not a whole number"
        raise ValueError(f"{word[:40]!r} {why}")
    return -number if word.startswith("-") else number


def _path(word: str) -> Path:
    """An empty name would be the current folder: what ``"$TRACE"`` means where it is not set is not that."""
    if not word:
        raise ValueError("an empty name; is a variable of the shell unset?")
    return Path(word)


_MAKERS: Final[dict[Any, Callable[[str], Any]]] = {str: str, Path: _path, int: _whole, bool: _switch}
_HOOK: Final = "_runtime_param"


class _PlainValue:
    """What typer asks for one parameter's value, in place of its pydantic adapter."""

    def __init__(self, make: Callable[[str], Any], least: float | None, most: float | None) -> None:
        self._make, self._least, self._most = make, least, most

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value of what the parser found: None, a word, or words.

        Raises:
            typer.BadParameter: a word that is no such value, or a number out of range.
        """
        many = param.multiple or param.nargs == -1
        if value is None:
            return () if many else None
        try:
            return [self._one(word) for word in value] if many else self._one(value)
        except ValueError as error:
            raise typer.BadParameter(str(error), ctx=ctx, param=param) from None

    def _one(self, word: Any) -> Any:
        made = self._make(word) if isinstance(word, str) else word
        if self._least is not None and made < self._least:
            raise ValueError(f"{made} is less than {self._least:g}")
        if self._most is not None and made > self._most:
            raise ValueError(f"{made} is more than {self._most:g}")
        return made


def plain_values(parameters: Iterable[Any]) -> None:
    """Have parameters make their values themselves, where typer lets them."""
    for parameter in parameters:
        if getattr(parameter, _HOOK, parameter) is not None:
            continue
        described = parameter.type_descriptor
        kind = get_args(described.annotation)[0] if described.is_list else described.annotation
        asked = described.parameter_info
        if kind in _MAKERS and asked.parser is None and not getattr(asked, "clamp", None):
            setattr(parameter, _HOOK, _PlainValue(_MAKERS[kind], asked.min, asked.max))
