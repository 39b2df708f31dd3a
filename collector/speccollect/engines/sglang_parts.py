"""Hooks of what SGLang's workers run within a speculative cycle: one frame each, which stamps its part.

They pass through in other cycles, in warm-up runs, which no cycle encloses, and on other threads. Whether a graph is captured
was asked when the cycle began; within one it is asked only where ranges are wanted (``stamps.within``).
"""

from __future__ import annotations

import threading
import time
from typing import Any, Final

from speccollect.cycles.phase_codes import CODES
from speccollect.cycles.segment import END
from speccollect.engines.sglang_batch import accepted_list
from speccollect.engines.sglang_open_cycle import NO_PHASE, OpenBatch
from speccollect.hooks.stamps import Call, Fail, Weave

_VERIFY: Final = CODES["verify"]
_FORWARD: Final = CODES["target_forward"]
_SAMPLE: Final = CODES["sample"]

_ident = threading.get_ident
_now = time.time_ns


def leaf(step: OpenBatch, name: str) -> Weave:
    """A leaf phase: draft, verify, draft_extend."""
    code = CODES[name]

    def make(original: Call, fail: Fail) -> Call:
        def hooked(*args: Any, **kwargs: Any) -> Any:
            if not step.armed or _ident() != step.thread:
                return original(*args, **kwargs)
            watched = step.watched
            if watched and step.capturing():
                return original(*args, **kwargs)
            outer = step.phase
            step.phase = code
            rows = step.rows
            end = len(rows) + END
            rows += (_now(), 0, step.number, code)
            if watched:
                step.enter_range(code)
            try:
                return original(*args, **kwargs)
            finally:
                rows[end] = _now()
                if watched:
                    step.leave_range()
                step.phase = outer

        return hooked

    return Weave(make)


def target_forward(step: OpenBatch) -> Weave:
    """``TpModelWorker.forward_batch_generation``: the target's forward.

    Within verify it is a sub-phase. In a cycle whose worker has no hook points here (n-gram, DFlash, ...) it is the verify
    phase.
    """

    def make(original: Call, fail: Fail) -> Call:
        def hooked(*args: Any, **kwargs: Any) -> Any:
            outer = step.phase
            if not step.armed or outer not in (NO_PHASE, _VERIFY) or _ident() != step.thread:
                return original(*args, **kwargs)
            watched = step.watched
            if watched and step.capturing():
                return original(*args, **kwargs)
            code = _FORWARD if outer == _VERIFY else _VERIFY
            step.phase = _VERIFY
            rows = step.rows
            end = len(rows) + END
            rows += (_now(), 0, step.number, code)
            if watched:
                step.enter_range(code)
            try:
                return original(*args, **kwargs)
            finally:
                rows[end] = _now()
                if watched:
                    step.leave_range()
                step.phase = outer

        return hooked

    return Weave(make)


def verify_tree(step: OpenBatch) -> Weave:
    """``EagleVerifyInput.verify`` of the v1 worker: samples, accepts, and brings the counts to the host itself."""

    def make(original: Call, fail: Fail) -> Call:
        def hooked(*args: Any, **kwargs: Any) -> Any:
            if not step.armed or _ident() != step.thread or (step.watched and step.capturing()):
                return original(*args, **kwargs)
            place = step.begin(_SAMPLE)
            try:
                outcome = original(*args, **kwargs)
            finally:
                step.end(place)
            try:
                step.accepted = accepted_list(outcome)
            except Exception as error:  # noqa: BLE001  hook boundary: fail open
                fail(error)
            return outcome

        return hooked

    return Weave(make)


def replay(step: OpenBatch) -> Weave:
    """``CudaGraphRunner.replay`` of releases whose result doesn't say whether a graph ran."""

    def make(original: Call, fail: Fail) -> Call:
        def hooked(*args: Any, **kwargs: Any) -> Any:
            if step.running and _ident() == step.thread:
                step.replayed = True
            return original(*args, **kwargs)

        return hooked

    return Weave(make)
