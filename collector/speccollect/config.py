"""Settings of the collector: where its folder is, and which cycles the profiler looks at."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final

from specschema.errors import UsageError

FOLDER_VARIABLE: Final = "SPECANALYZE_DIR"
"""Folder that all ranks of one server and its `speccollect` commands share; setting it switches the plugin on."""

SWITCH_VARIABLE: Final = "SPECANALYZE"
"""1 switches the plugin on with the default folder, 0 switches it off whatever else is set."""

BACKEND_VARIABLE: Final = "SPECANALYZE_BACKEND"
"""``cupti`` in a server's environment: ask CUPTI for node ids at capture where the driver itself does not tell them."""

MAX_RECORD: Final = 2048
"""Decode cycles of one window: its stamps must fit one preallocated buffer."""

_ON: Final = ("1", "true", "yes", "on")
_OFF: Final = ("0", "false", "no", "off")


@dataclass(frozen=True)
class WindowSettings:
    """Which decode cycles are profiled. All counts are in decode cycles; prefill and idle steps are not counted."""

    skip: int = 60
    """Untraced cycles before the first window: the control, and the time a server needs to settle."""
    warmup: int = 2
    """Cycles with the profiler attached but its events thrown away: the first launches after attaching are dearer."""
    record: int = 40
    """Cycles whose events are kept."""
    repeat: int = 3
    """Number of windows; 0 records phases only."""
    gap: int = 60
    """Untraced cycles between two windows: more control."""
    cpu_ops: bool = False
    """Record CPU operators, too. Dearer, and the only source of the metadata of eager collectives."""
    stamps: bool = False
    """Device activity alone inside windows, without the six marks that measure the profiler's clock against the host's."""
    ranges: bool = False
    """A range of the profiler's around every phase inside windows, 10 us each; else phases are the host's stamps there, too."""
    details: bool = False
    """Grid, block and copy sizes from the profiler's per-event text: several microseconds an event after the window."""
    cupti: bool = False
    """Record device activity through NVIDIA's cupti-python instead of torch.profiler: exact graph nodes, phases from stamps."""
    modules: bool = False
    """Which module runs when, inside windows, for eager forwards: a stamp at each module's begin and end, about 3 us a call."""
    max_events: int = 1_000_000
    """Events kept of one window; a longer window is cut at the time the limit was reached, and says so."""
    max_seconds: int = 30
    """A window that lasts longer is closed early, and says so."""

    def __post_init__(self) -> None:
        for name in ("skip", "warmup", "repeat", "gap"):
            if not 0 <= getattr(self, name) < 2**31:
                raise UsageError(f"windows: {name} must be from 0 to {2**31 - 1}, not {getattr(self, name)}")
        for name in ("record", "max_events", "max_seconds"):
            if not 1 <= getattr(self, name) < 2**31:
                raise UsageError(f"windows: {name} must be from 1 to {2**31 - 1}, not {getattr(self, name)}")
        if self.cupti and self.cpu_ops:
            raise UsageError("windows: cupti records no CPU operators; leave out cpu_ops or cupti")
        if self.ranges and (self.stamps or self.cupti):
            raise UsageError("windows: ranges are torch.profiler's; leave out ranges, or stamps and cupti")
        if self.record > MAX_RECORD:
            raise UsageError(f"windows: record at most {MAX_RECORD} cycles in one window, not {self.record}")

    @property
    def last_cycle(self) -> int:
        """Decode cycles after which the last window is closed, counted from arming."""
        if self.repeat == 0:
            return 0
        return self.skip + self.repeat * (self.warmup + self.record) + (self.repeat - 1) * self.gap


PHASES_ONLY: Final = WindowSettings(repeat=0)


def parse_windows(text: str, base: WindowSettings | None = None) -> WindowSettings:
    """Window settings from a command line.

    Args:
        text: ``off`` for phases only, or ``name=value`` pairs separated by commas, such as
            ``skip=60,warmup=2,record=40,repeat=3,gap=60,cpu_ops``; what is not named keeps its default.
        base: settings to start from in place of the defaults.

    Raises:
        UsageError: an unknown name or a value that is not a whole number.
    """
    if text.strip().lower() in (*_OFF, "none", "phases"):
        return PHASES_ONLY
    types = {field.name: field.type for field in fields(WindowSettings)}
    values: dict[str, int | bool] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, _, value = part.partition("=")
        name = name.strip().replace("-", "_")
        if name not in types:
            raise UsageError(f"windows: {name!r} is not a setting; there are: {', '.join(types)} (or: off)")
        if types[name] == "bool":
            values[name] = value.strip().lower() in ("", *_ON)
        else:
            try:
                values[name] = int(value)
            except ValueError:
                raise UsageError(f"windows: {name} needs a whole number, not {value!r}") from None
    return replace(base or WindowSettings(), **values)  # type: ignore[arg-type]


def default_folder() -> Path:
    """Folder used when nobody names one: under the user's runtime folder, else the temporary one, with the uid in it."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime) and os.access(runtime, os.W_OK):
        return Path(runtime) / "specanalyze"
    return Path(tempfile.gettempdir()) / f"specanalyze-{os.getuid()}"


def folder_from(environment: Mapping[str, str]) -> Path:
    """The collector's folder: SPECANALYZE_DIR, else the default."""
    named = environment.get(FOLDER_VARIABLE, "").strip()
    return Path(named) if named else default_folder()


def switched_on(environment: Mapping[str, str]) -> bool:
    """Whether a server process should load the collector. Installed alone is not enough: most servers are not measured."""
    switch = environment.get(SWITCH_VARIABLE, "").strip().lower()
    if switch in _OFF:
        return False
    return switch in _ON or bool(environment.get(FOLDER_VARIABLE, "").strip())
