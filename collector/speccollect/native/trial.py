"""Tries a freshly compiled reader on a real profile: ``python -m speccollect.native.trial FILE`` ends with 0 where both readers agree."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from speccollect.kineto.events import CompiledEvents, PythonEvents
from speccollect.native.build import load


def agree(path: Path) -> bool:
    """Whether the compiled reader gives the columns that the Python reader gives."""
    module = load(path)
    value = torch.ones(4)
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        for _ in range(50):
            with record_function("spec.verify"):
                value.add(value).mul(value)
    results = recorded.profiler.kineto_results
    plain = PythonEvents(results).columns(pause=None)
    compiled = CompiledEvents(results, module)
    ours = compiled.columns(pause=None)
    names = ("start", "duration", "correlation", "device", "resource", "name", "type")
    same = all(np.array_equal(getattr(ours, name), getattr(plain, name)) for name in names)
    same &= ours.names == plain.names and ours.types == plain.types and len(ours) >= 150
    compiled.release()
    return same and module.count(results) == 0


if __name__ == "__main__":
    sys.exit(0 if agree(Path(sys.argv[1])) else "the compiled reader and the Python reader disagree")
