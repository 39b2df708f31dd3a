"""Which profiler a window gets: torch's, or cupti-python where it was asked for, can be had and sees the device."""

from __future__ import annotations

from collections.abc import Callable

from speccollect.config import WindowSettings
from speccollect.cupti.profiler import CuptiProfiler
from speccollect.kineto.columns import DEVICE_TYPES, KinetoColumns
from speccollect.kineto.profiler import Profiler, has_cuda
from speccollect.windows.result import empty_window

Say = Callable[[str], None]
"""Tells the log, the rank's status and the trace."""


class ProfilerChoice:
    """The choice for one recording: what failed once is not tried again.

    Attributes:
        device: cuda, or cpu when Kineto sees no device and operators stand in.
        blind: a window without device activity was found although graphs ran; also set by the writer thread.
    """

    def __init__(self, settings: WindowSettings) -> None:
        self.device = "cuda" if has_cuda() else "cpu"
        self.blind = False
        self._settings = settings
        self._cupti = settings.cupti and self.device == "cuda"

    def attached(self, say: Say) -> Profiler | CuptiProfiler:
        """A profiler that is attached to the device.

        Raises:
            Exception: whatever torch's profiler raised.
        """
        settings = self._settings
        if settings.cupti and self.device != "cuda":
            say("cupti: no CUDA device here; windows use torch.profiler")
        if self._cupti and self.blind:
            self._without_cupti(say, "its window was empty")
        if self._cupti:
            try:
                return self._cupti_profiler(say)
            except Exception as error:  # noqa: BLE001  the other profiler does it
                self._without_cupti(say, f"{type(error).__name__}: {error}")
        profiler = Profiler(
            cuda=self.device == "cuda", cpu_ops=settings.cpu_ops, stamps=settings.stamps, details=settings.details
        )
        profiler.prepare()
        if profiler.lacking is not None:
            say(profiler.lacking)
        return profiler

    def _cupti_profiler(self, say: Say) -> CuptiProfiler:
        profiler = CuptiProfiler(self._settings.max_events)
        profiler.prepare()
        if "objects_because" in profiler.facts:
            say(
                "cupti: records are cupti-python's objects, which hold the server at each window's end"
                f" ({profiler.facts['objects_because']})"
            )
        return profiler

    def _without_cupti(self, say: Say, why: str) -> None:
        self._cupti = False
        say(f"cupti: windows use torch.profiler instead of cupti-python ({why})")

    def look(
        self, say: Say, window: int, profiler: Profiler | CuptiProfiler, columns: KinetoColumns, replays: int
    ) -> None:
        """Whether a window that was read saw the device; cupti-python is left out from now on if it did not."""
        why = empty_window(window, profiler.kind, int(columns.of_type(*DEVICE_TYPES).sum()), replays)
        if why is not None:
            say(why)
            if isinstance(profiler, CuptiProfiler):
                self._without_cupti(say, "its window was empty")
