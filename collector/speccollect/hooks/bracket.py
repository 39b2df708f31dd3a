"""Hooks that only look: something is noted before a call and after it, and the call itself stays the server's.

A wrapper (``speccollect.hooks.guard``) may do anything with the original, and being held to run it once costs it an object and
four more frames a call. A bracket never holds the original, so the promise holds by construction: the original runs
once, with its arguments, result and exception untouched. On a server's step path, whose caches the step itself has
emptied, frames are what a hook costs: a microsecond or so each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

from speccollect.hooks.guard import Wrapper, capturing, tell

Before = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""``before(instance, args, kwargs)``: returns what ``after`` is given; None: there is nothing to do afterwards."""

After = Callable[[Any, Any, bool], None]
"""``after(state, result, failed)``: ``failed`` when the original raised, ``result`` is None then."""


class Bracket(NamedTuple):
    """What a hook does around a call."""

    before: Before
    after: After
    gate: Any = None
    """Object whose ``armed`` says whether to run; None: the recorder. Narrower than the recorder's where a method comes by
    more often than it matters."""


def bracketed(
    original: FunctionType, bracket: Bracket, recorder: Any, where: str, *, method: bool, polls: bool = False
) -> Callable[..., Any]:
    """A plain function in the place of ``original``.

    Args:
        where: name of the hooked method, for ``recorder.fail``.
        method: whether the first argument is the instance.
        polls: let the recorder read its control word first, while not armed; armed, ``before`` does so.
    """
    before, after, gate = bracket
    if gate is None:
        gate = recorder

    if not method:

        @functools.wraps(original)
        def hooked_function(*args: Any, **kwargs: Any) -> Any:
            if not gate.armed or capturing():
                return original(*args, **kwargs)
            state = _begun(before, None, args, kwargs, recorder, where)
            result = None
            failed = True
            try:
                result = original(*args, **kwargs)
                failed = False
            finally:
                if state is not None:
                    _ended(after, state, result, failed, recorder, where)
            return result

        return hooked_function

    @functools.wraps(original)
    def hooked(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not gate.armed:
            if not polls:
                return original(self, *args, **kwargs)
            try:
                recorder.poll()
            except Exception as error:  # noqa: BLE001  hook boundary: fail open
                tell(recorder, where, error)
            if not gate.armed:
                return original(self, *args, **kwargs)
        if capturing():
            return original(self, *args, **kwargs)
        state = None
        try:
            state = before(self, args, kwargs)
        except Exception as error:  # noqa: BLE001  hook boundary: fail open
            tell(recorder, where, error)
        result = None
        failed = True
        try:
            result = original(self, *args, **kwargs)
            failed = False
        finally:
            if state is not None:
                try:
                    after(state, result, failed)
                except Exception as error:  # noqa: BLE001  hook boundary: fail open
                    tell(recorder, where, error)
        return result

    return hooked


def _begun(before: Before, instance: Any, args: Any, kwargs: Any, recorder: Any, where: str) -> Any:
    try:
        return before(instance, args, kwargs)
    except Exception as error:  # noqa: BLE001  hook boundary: fail open
        tell(recorder, where, error)
        return None


def _ended(after: After, state: Any, result: Any, failed: bool, recorder: Any, where: str) -> None:
    try:
        after(state, result, failed)
    except Exception as error:  # noqa: BLE001  hook boundary: fail open
        tell(recorder, where, error)


def as_wrapper(bracket: Bracket) -> Wrapper:
    """The same as a wrapper, for a target that is no plain function (somebody else has wrapped it, say)."""

    def wrapper(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if bracket.gate is not None and not bracket.gate.armed:
            return wrapped(*args, **kwargs)
        state = bracket.before(instance, args, kwargs)
        result = None
        failed = True
        try:
            result = wrapped(*args, **kwargs)
            failed = False
        finally:
            if state is not None:
                bracket.after(state, result, failed)
        return result

    return wrapper
