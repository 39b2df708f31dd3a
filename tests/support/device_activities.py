"""Device activities in real torch profiles of a machine without a GPU; see device_activities.cpp."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity

from speccollect.native import build

SOURCE: Final = Path(__file__).with_suffix(".cpp")
KINDS: Final = ("kernel", "memcpy", "memset", "call")
_STANDARDS: Final = ("-std=c++20", "-std=c++17")


@dataclass(frozen=True)
class Given:
    """An activity to be reported.

    Attributes:
        kind: one of KINDS.
        start, duration: ns since the Unix epoch; ns.
        row: stream, or the thread of a call.
        graph, ordinal: executable graph and the node's place in it; graph 0 for work of no graph.
    """

    kind: str
    name: str
    start: int
    duration: int
    row: int
    correlation: int
    graph: int = 0
    ordinal: int = 0
    bytes: int = 0


class DeviceActivities:
    """The plugin, loaded into this process for good; it reports nothing that was not given to it.

    Attributes:
        typed: torch's own headers put the text together (torch >= 2.14).
    """

    def __init__(self, library: Path) -> None:
        self._give: Any = ctypes.CDLL(str(library)).device_activities_give
        self._give.argtypes = [ctypes.c_int, ctypes.c_char_p, *[ctypes.c_int64] * 4]
        self._give.argtypes += [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64, ctypes.c_int]
        loaded = ctypes.CDLL(str(library))
        self.typed = bool(loaded.device_activities_typed())
        loaded.device_activities_register()

    def profile(self, given: list[Given], *, ids: bool = True) -> Any:
        """A finished torch.profiler.profile with these activities in it; without ``ids`` their text is that of torch 2.11."""
        config = torch._C._profiler._ExperimentalConfig(expose_kineto_event_metadata=True)
        with torch.profiler.profile(activities=[ProfilerActivity.CPU], experimental_config=config) as profile:
            for one in given:
                node = one.graph << 32 | one.ordinal
                texts = (KINDS.index(one.kind), one.name.encode(), one.start, one.duration, one.row, one.correlation)
                self._give(*texts, one.graph, node, one.bytes, int(ids))
        return profile


def compile_plugin(folder: Path) -> Path | str:
    """The plugin compiled against the installed torch; why there is none, where there can be none."""
    home = Path(torch.__file__).parent
    if not (home / "include" / "kineto" / "libkineto.h").exists():
        return f"torch {torch.__version__} brings no headers of Kineto"
    target, said = folder / "device_activities.so", "no C++ compiler"
    for compiler in build.compilers():
        for standard in _STANDARDS:
            command = [
                compiler,
                standard,
                "-O0",
                "-shared",
                "-fPIC",
                "-DKINETO_NAMESPACE=libkineto",
                "-DFMT_HEADER_ONLY",
            ]
            command += [*build._abi_macros(), f"-I{home / 'include'}", str(SOURCE), "-o", str(target)]
            command += [f"-L{home / 'lib'}", "-ltorch_cpu", "-lc10"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return target
            said = done.stderr[:2000]
    return said
