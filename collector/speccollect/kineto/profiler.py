"""torch.profiler's engine without its Python layer: device activity and our own ranges, no operators, no synchronisation."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final

from packaging.version import Version

from speccollect.kineto import torch_surface
from speccollect.kineto.events import Events, events_of

USER_RANGES: Final = "user ranges and device activity"
DEVICE_ONLY: Final = "device activity"
PLAIN: Final = "torch.profiler"
NODE_IDS_SINCE: Final = (2, 12)
"""torch whose Kineto writes ``graph id`` and ``graph node id`` (pytorch/kineto 1a72dcae; seen in 2.12.0's library, not in 2.11.0's traces)."""
OPERATORS: Final = "operators, ranges and device activity"


def has_cuda() -> bool:
    """Whether Kineto can see a CUDA device here."""
    import torch

    profiler: Any = torch.profiler
    return torch.cuda.is_available() and profiler.ProfilerActivity.CUDA in profiler.supported_activities()


def foreign_profiler() -> bool:
    """Whether a torch profiler that is not ours runs on this thread or on all threads."""
    import torch

    enabled = getattr(torch.autograd, "_profiler_enabled", None)
    return enabled is not None and bool(enabled())


def tells_nodes() -> bool:
    """Whether this torch's Kineto writes graph and node ids into its text."""
    import torch

    return Version(torch.__version__).release >= NODE_IDS_SINCE


@functools.cache
def _moved(parts: tuple[torch_surface.Part, ...]) -> tuple[str, ...]:
    """What of some parts this torch has not; looked up once."""
    return tuple(torch_surface.moved(parts))


class Profiler:
    """One window's profiler. All calls must come from the thread whose ranges are wanted.

    torch.profiler.profile synchronises the device when it stops and records every operator; so its private parts are
    used, and torch.profiler itself only where they are missing.

    Attributes:
        kind: one of the constants above: what it records.
        metadata: whether its events carry Kineto's text.
        ids_only: of that text only graph and node ids are wanted.
        lacking: what this torch hasn't and what is done without it, one line; None where it has all.
        prepare_cost_ns, start_cost_ns, stop_cost_ns, events_cost_ns: how long the serving thread was held.
    """

    def __init__(self, *, cuda: bool, cpu_ops: bool, stamps: bool, details: bool) -> None:
        import torch
        import torch.autograd.profiler as autograd_profiler

        self._torch: Any = torch
        self._autograd: Any = autograd_profiler
        self._plain: Any = None
        self.lacking: str | None = None
        self.prepare_cost_ns = 0
        self.start_cost_ns = 0
        self.stop_cost_ns = 0
        self.events_cost_ns = 0
        activity = torch.profiler.ProfilerActivity
        self._scopes: set[Any] | None = None
        operators = cpu_ops or not cuda
        if operators:
            self.kind = OPERATORS
            self._activities = {activity.CPU, activity.CUDA} if cuda else {activity.CPU}
        elif stamps:
            self.kind = DEVICE_ONLY
            self._activities = {activity.CUDA}
        else:
            self.kind = USER_RANGES
            self._activities = {activity.CPU, activity.CUDA}
            moved = _moved(torch_surface.SCOPES)
            if moved:
                self.kind = DEVICE_ONLY
                self._activities = {activity.CUDA}
                self.lacking = self._without(f"{moved[0]}: the profiler's clock is taken for the host's")
            else:
                self._scopes = {torch._C._profiler.RecordScope.USER_SCOPE}
        # the profiler's per-event text costs on the serving thread when it stops, so it is asked for only where used
        whole = operators or details
        self.metadata = whole or tells_nodes()
        self.ids_only = not whole
        self._options: dict[str, Any] = {}
        if self.metadata:
            moved = _moved(torch_surface.TEXT)
            self.metadata = not moved
            if moved and whole:
                self.lacking = self._without(f"{moved[0]}: no launch shapes, sizes of copies or eager collectives")
            elif not moved:
                self._options = {
                    "experimental_config": torch._C._profiler._ExperimentalConfig(expose_kineto_event_metadata=True)
                }
        self._config: Any = None

    def _without(self, what: str) -> str:
        return f"torch {self._torch.__version__}: {what}"

    @property
    def has_ranges(self) -> bool:
        """Whether record_function ranges are recorded."""
        return self.kind != DEVICE_ONLY

    @property
    def plain(self) -> bool:
        """Whether torch.profiler itself is used, because its private parts are missing."""
        return self._plain is not None

    def prepare(self) -> None:
        """Attach to the device; events are thrown away until ``start``."""
        begun = time.perf_counter_ns()
        autograd, torch = self._autograd, self._torch
        moved = _moved(torch_surface.PROFILER)
        try:
            if moved:
                raise AttributeError(moved[0])
            # the old class builds the configuration for every torch release; it is not entered
            settings = autograd.profile(
                use_kineto=True,
                use_cpu=True,
                use_device="cuda" if torch.profiler.ProfilerActivity.CUDA in self._activities else None,
                **self._options,
            )
            self._config = settings.config
            torch.autograd._prepare_profiler(self._new_config(), self._activities)
        except (AttributeError, TypeError) as error:
            self._config = None
            self._plain = self._torch_profiler()
            self.metadata = False
            self.lacking = self._without(
                f"{error}: windows use torch.profiler itself, which waits for the device as it stops"
            )
        self.prepare_cost_ns = time.perf_counter_ns() - begun

    def _new_config(self) -> Any:
        try:
            return self._config(create_trace_id=True)
        except TypeError:
            return self._config()

    def _torch_profiler(self) -> Any:
        self.kind = PLAIN
        return self._torch.profiler.profile(activities=list(self._activities))

    def start(self) -> None:
        """Events are kept from here on."""
        begun = time.perf_counter_ns()
        if self._plain is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch 2.11 tells users of schedules that each cycle clears its events
                self._plain.start()
        else:
            enable = self._torch.autograd._enable_profiler
            if self._scopes is None:
                enable(self._new_config(), self._activities)
            else:
                try:
                    enable(self._new_config(), self._activities, self._scopes)
                except TypeError:
                    # no scopes in this torch: operators would come along, so leave the host side out
                    self.kind = DEVICE_ONLY
                    self._scopes = None
                    self._activities = {self._torch.profiler.ProfilerActivity.CUDA}
                    enable(self._new_config(), self._activities)
        self.start_cost_ns = time.perf_counter_ns() - begun

    def stop(self) -> Events:
        """Detach, and return what Kineto holds; with the compiled reader nothing of it is looked at here."""
        begun = time.perf_counter_ns()
        if self._plain is not None:
            self._plain.stop()
            result = self._plain.profiler.kineto_results
        else:
            result = self._torch.autograd._disable_profiler()
        stopped = time.perf_counter_ns()
        self.stop_cost_ns = stopped - begun
        # the Python reader makes an object of each event: here, between two cycles, it disturbs none of them
        events = events_of(result)
        self.events_cost_ns = time.perf_counter_ns() - stopped
        return events


@contextlib.contextmanager
def yielding_to_others(give_way: Callable[[], None]) -> Iterator[None]:
    """While our window is open, a torch profiler that somebody else starts on this thread closes it first.

    Without this, the server's own /start_profile would raise inside its scheduler.
    """
    from torch.autograd import profiler as autograd_profiler

    thread = threading.get_ident()
    names = [n for n in ("_prepare_profiler", "_enable_profiler") if hasattr(autograd_profiler, n)]
    originals = {name: getattr(autograd_profiler, name) for name in names}

    def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == thread:
                give_way()
            return original(*args, **kwargs)

        return call

    for name, original in originals.items():
        setattr(autograd_profiler, name, wrapped(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(autograd_profiler, name, original)
