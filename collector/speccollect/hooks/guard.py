"""What stands between a server's call and our code: the original runs exactly once, and our exceptions stay ours.

Also the fast path: while nothing is armed, a hooked call costs one attribute check more than the call itself.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

logger = logging.getLogger("speccollect")

Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]
"""``wrapper(wrapped, instance, args, kwargs)``; ``wrapped`` is bound to ``instance`` already (wrapt's convention)."""


class _Original:
    """The original of one call: runs at most once, and remembers how it went."""

    __slots__ = ("called", "error", "result", "wrapped")

    def __init__(self, wrapped: Callable[..., Any]) -> None:
        self.wrapped = wrapped
        self.called = False
        self.result: Any = None
        self.error: BaseException | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.called:
            if self.error is not None:
                raise self.error
            return self.result
        self.called = True
        try:
            self.result = self.wrapped(*args, **kwargs)
        except BaseException as error:
            self.error = error
            raise
        return self.result


def guarded(where: str, wrapper: Wrapper, recorder: Any, *, polls: bool = False, always: bool = False) -> Wrapper:
    """A wrapper that keeps the promise of this module, whatever ``wrapper`` does.

    Args:
        where: name of the hooked method, for ``recorder.fail``.
        polls: let the recorder read its control word first.
        always: run ``wrapper`` also while not armed.
    """

    def guard(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if polls:
            try:
                recorder.poll()
            except Exception as error:  # noqa: BLE001  hook boundary: fail open
                tell(recorder, where, error)
        if not (recorder.armed or always) or capturing():
            return wrapped(*args, **kwargs)
        original = _Original(wrapped)
        failure: Exception | None = None
        result: Any = None
        try:
            result = wrapper(original, instance, args, kwargs)
        except Exception as error:  # noqa: BLE001  hook boundary: fail open
            failure = error
        if failure is not None and failure is not original.error:
            tell(recorder, where, failure)
        elif failure is None and not original.called:
            tell(recorder, where, RuntimeError("the wrapper did not call the original"))
        if original.error is not None:
            try:
                raise original.error
            finally:
                # the traceback refers to this frame: without this the server's objects would wait for the collector
                original.error = failure = None
        if not original.called:
            return wrapped(*args, **kwargs)
        return original.result if failure is not None else result

    return guard


def tell(recorder: Any, where: str, error: Exception) -> None:
    """Lets the recorder switch itself off; its own failure to do so must not reach the server either."""
    try:
        recorder.fail(where, error)
    except Exception:
        recorder.armed = False
        logger.exception("speccollect could not switch itself off in order after %s: %s", where, error)


_asks: Callable[[], bool] | None = None
"""What answers ``capturing`` once that is known; hooks ask several times a cycle."""


def capturing() -> bool:
    """Whether the calling thread's current CUDA stream is being captured: no range or event belongs in a graph."""
    return _look() if _asks is None else _asks()


def asks_capturing() -> Callable[[], bool]:
    """What answers ``capturing`` at the moment: a hook that asks several times a step saves a frame each time."""
    return _look if _asks is None else _asks


def _look() -> bool:
    """As long as CUDA has not started: it may. A torch without CUDA, or whose CUDA never started, raises where it is asked."""
    global _asks
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "version") or not hasattr(torch, "cuda"):
        return False
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        _asks = bool  # which is False
    elif torch.cuda.is_initialized():
        _asks = getattr(torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing)
    else:
        return False
    return bool(_asks())


def _forget() -> None:
    """A forked child has no CUDA, and raises where it is asked."""
    global _asks
    _asks = None


os.register_at_fork(after_in_child=_forget)


def switched(original: FunctionType, guard: Wrapper, recorder: Any, *, method: bool) -> Callable[..., Any]:
    """A plain function in the place of ``original`` that goes through ``guard`` only while armed.

    wrapt's wrapper would do, but costs 0.6 us a call where this costs 0.1; hooks lie on every cycle's path.

    Args:
        method: whether the first argument is the instance.
    """
    if method:

        @functools.wraps(original)
        def hooked(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            if not recorder.armed:
                return original(self, *args, **kwargs)
            return guard(original.__get__(self), self, args, kwargs)

        return hooked

    @functools.wraps(original)
    def hooked_function(*args: Any, **kwargs: Any) -> Any:
        if not recorder.armed:
            return original(*args, **kwargs)
        return guard(original, None, args, kwargs)

    return hooked_function
