"""Hooks of what runs within a step of vLLM's runners: each stamps its part, and does nothing where no cycle is open.

Dummy runs go through the same methods; no cycle encloses them.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from speccollect.cycles.phase_codes import CODES
from speccollect.engines.vllm_open_cycle import GRAPH_PHASE, OpenStep, extends_first
from speccollect.hooks.stamps import Call, Fail, Weave

_FORWARD, _SAMPLE, _DRAFT, _EXTEND = (CODES[name] for name in ("target_forward", "sample", "draft", "draft_extend"))

_ident = threading.get_ident


def target_forward(step: OpenStep) -> Weave:
    """V1's ``_model_forward``, with the graph that it replays."""

    def make(original: Call, fail: Fail) -> Call:
        eager: Any = (
            None  # vLLM's mode of a forward without graphs: asking an enumeration for its name takes three frames
        )

        def hooked(*args: Any, **kwargs: Any) -> Any:
            nonlocal eager
            if not step.armed or _ident() != step.thread or step.capturing():
                return original(*args, **kwargs)
            graph = -1
            place = step.begin(_FORWARD)
            try:
                context = sys.modules["vllm.forward_context"].get_forward_context()
                mode = context.cudagraph_runtime_mode
                step.dispatched = True
                if mode is not eager:
                    step.note_graph(mode, context.batch_descriptor)
                    if step.graph is None:
                        eager = mode
                    else:
                        graph = step.begin(CODES[GRAPH_PHASE[step.graph]])
            except Exception as error:  # noqa: BLE001  hook boundary: fail open
                fail(error)
            try:
                return original(*args, **kwargs)
            finally:
                if graph >= 0:
                    step.end(graph)
                step.end(place)

        return hooked

    return Weave(make)


def sample(step: OpenStep) -> Weave:
    """``_sample`` of V1, ``sample`` of V2: logits to tokens, rejection included. The target's part ends with it."""

    def make(original: Call, fail: Fail) -> Call:
        def hooked(*args: Any, **kwargs: Any) -> Any:
            if not step.armed or _ident() != step.thread or step.capturing():
                return original(*args, **kwargs)
            place = step.begin(_SAMPLE)
            try:
                return original(*args, **kwargs)
            finally:
                step.end(place)
                if step.drafting:
                    step.leave()

        return hooked

    return Weave(make)


def propose(step: OpenStep, extends: bool | None) -> Weave:
    """The call that makes the drafts of the next step.

    Args:
        extends: whether its first forward runs the draft model over the tokens just accepted; None: ask V1's
            drafter (n-gram and suffix matching have no model, a parallel drafter has one forward for everything).
    """

    def make(original: Call, fail: Fail) -> Call:
        def hooked(*args: Any, **kwargs: Any) -> Any:
            if not step.armed or not step.drafting or step.leaf >= 0 or _ident() != step.thread or step.capturing():
                return original(*args, **kwargs)
            try:
                step.extending = extends_first(args[0].drafter) if extends is None else extends
            except Exception as error:  # noqa: BLE001  hook boundary: fail open
                fail(error)
            step.enter(_EXTEND if step.extending else _DRAFT)
            try:
                return original(*args, **kwargs)
            finally:
                step.extending = False
                step.leave()

        return hooked

    return Weave(make)


def extended(step: OpenStep, after: bool) -> Weave:
    """A call that the drafter makes right after its re-extend; the draft proper begins.

    Args:
        after: with the end of that call; else before it.
    """

    def make(original: Call, fail: Fail) -> Call:
        def begin_draft() -> None:
            if step.armed and _ident() == step.thread and not step.capturing():
                step.extending = False
                step.leave()
                step.enter(_DRAFT)

        def hooked_before(*args: Any, **kwargs: Any) -> Any:
            if step.extending:
                begin_draft()
            return original(*args, **kwargs)

        def hooked_after(*args: Any, **kwargs: Any) -> Any:
            if not step.extending:
                return original(*args, **kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                if step.extending:  # an override that calls the method it overrides has both hooked
                    begin_draft()

        return hooked_after if after else hooked_before

    return Weave(make)


def dispatch(step: OpenStep) -> Weave:
    """V2's ``dispatch_cg_and_sync_dp``: the choice of the CUDA graph for a batch; a cycle's first is the target's.

    It returns a tuple that begins with a descriptor that has the mode.
    """

    def make(original: Call, fail: Fail) -> Call:
        def hooked(*args: Any, **kwargs: Any) -> Any:
            chosen = original(*args, **kwargs)
            if step.armed and not step.dispatched and _ident() == step.thread:
                try:
                    step.note_graph(chosen[0].cg_mode, chosen[0])
                except Exception as error:  # noqa: BLE001  hook boundary: fail open
                    fail(error)
            return chosen

        return hooked

    return Weave(make)
