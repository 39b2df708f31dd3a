"""What the figures that a client took of its requests cover."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specschema.figures import counted


def requests_cover(metadata: Mapping[str, Any]) -> str | None:
    """What ``recording.requests`` covers, in a sentence; None without such figures.

    The client's clock runs through the profiler's windows, so its tok/s is no speed of the server.
    """
    recording = metadata.get("recording")
    if not isinstance(recording, Mapping) or not isinstance(recording.get("requests"), Mapping):
        return None
    windows = {w.get("window") for w in recording.get("windows") or () if isinstance(w, Mapping)}
    slower = (
        f"; {counted(len(windows), 'profiler window')} inside made all of it slower than the server is, whose speed is the untraced tok/s of `phases`"
        if windows
        else ""
    )
    return (
        "as the client saw it: tokens_per_second from the first request sent to the last ended, with prefill; decode_tokens_per_second the "
        f"mean over requests, from the first chunk to the last{slower}"
    )
