"""The embedded engine's hook points exist as written, go on and come off."""

from __future__ import annotations

import inspect

from speccollect.demo import scheduler, worker
from speccollect.engines import embedded
from speccollect.rank.recorder import Recorder


def test_every_hook_point_is_found_and_put_back() -> None:
    methods = {
        f"{owner.__module__}.{owner.__name__}.{name}": (owner, name)
        for owner in (worker.SpeculativeWorker, scheduler.Scheduler)
        for name in vars(owner)
    }
    points = [point.name for point in embedded.points(Recorder(None))]
    before = {name: inspect.getattr_static(*methods[name]) for name in points}

    installed = embedded.install(Recorder(None))
    try:
        assert sorted(installed.patched) == sorted(points)
        assert installed.pending == installed.skipped == installed.missing == []
        assert all(inspect.getattr_static(*methods[name]) is not before[name] for name in points)
    finally:
        installed.remove()
    assert all(inspect.getattr_static(*methods[name]) is before[name] for name in points)
