"""What ran: hardware, software, settings, and never a secret."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def environment(server: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata section ``environment``."""
    return {**server}
