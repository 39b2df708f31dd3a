"""A library with the face of libcupti, for tests without a GPU; see fake_cupti.c."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from speccollect.cupti.buffers import FUNCTIONS
from speccollect.native import cupti_library

SOURCE: Final = Path(__file__).with_suffix(".c")


class FakeCupti:
    """The library, loaded into this process for good.

    Its calls hold the interpreter lock: whatever CUPTI's threads do meanwhile must not need it.
    """

    def __init__(self, library: Path) -> None:
        self.library = ctypes.PyDLL(str(library))
        self.library.fake_size.argtypes = (ctypes.c_int, ctypes.c_size_t)
        self.library.fake_run.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        self.library.fake_stranger.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        self.library.fake_incomplete.argtypes = (ctypes.c_int64,)

    @property
    def addresses(self) -> dict[str, int]:
        """Its functions, as cupti-python tells libcupti's."""
        found = {name: ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value for name in FUNCTIONS}
        return {name: address for name, address in found.items() if address}

    def sizes(self, by_kind: dict[int, int]) -> None:
        """How long its records are."""
        for kind, size in by_kind.items():
            self.library.fake_size(kind, size)

    def record(self, records: Sequence[npt.NDArray[Any]], *, threads: int = 1) -> None:
        """Put records into buffers, on threads that are not Python's; all of them on each thread.

        Args:
            records: structured scalars or arrays of one record each.
        """
        memory = b"".join(record.tobytes() for record in records)
        lengths = np.array([record.dtype.itemsize for record in records], dtype=np.uint64)
        address = ctypes.cast(ctypes.c_char_p(memory), ctypes.c_void_p)
        assert self.library.fake_run(address, lengths.ctypes.data, len(lengths), threads) == 0


def compile_fake(folder: Path) -> Path | str:
    """The library; why there is none, where there can be none."""
    target, said = folder / "fake_cupti.so", "no C compiler"
    for compiler in cupti_library.compilers():
        command = [compiler, "-O1", "-shared", "-fPIC", "-pthread", "-o", str(target), str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return target
        said = done.stderr.strip().splitlines()[-1]
    return said
