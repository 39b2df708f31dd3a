"""Fixtures of the collector's tests."""

from __future__ import annotations

import pytest
from device_activities import DeviceActivities, compile_plugin


@pytest.fixture(scope="session")
def device(tmp_path_factory: pytest.TempPathFactory) -> DeviceActivities:
    """What puts device activities into torch's profiles; compiled once."""
    made = compile_plugin(tmp_path_factory.mktemp("plugin"))
    if isinstance(made, str):
        pytest.skip(made)
    return DeviceActivities(made)
