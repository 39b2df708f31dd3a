"""What to record, or to give, where a recording lacks something: another thing for each place it may have come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from specanalyze.trace import Trace

ACCEPTS, CYCLES, NODE_MAP, SETTINGS = "accepts", "cycles", "node map", "settings"
"""What a recording may lack: accepted tokens (with request names and batch sizes, which come from the same hook), decode
cycles, nodes of captured graphs, facts of the environment."""

_RECORD: Final = "record with the collector"
_ELSEWHERE: Final[Mapping[str, str]] = {
    ACCEPTS: _RECORD,
    CYCLES: _RECORD,
    NODE_MAP: _RECORD,
    SETTINGS: f"{_RECORD}, which keeps the environment",
}
_COLLECTED: Final[Mapping[str, str]] = {
    ACCEPTS: "the collector found none: its hook does not fit this server (`speccollect status` names hooks that do not)",
    CYCLES: "the collector was armed while nothing was decoded: send a request meanwhile (`speccollect request` does)",
    NODE_MAP: "the collector notes nodes while a graph is captured: it must be in the server from its start (plugin, or "
    "`speccollect run`), and the server must capture CUDA graphs",
    SETTINGS: "the collector could not tell it in this process, or it was redacted",
}
_ON_A_CPU: Final[Mapping[str, str]] = {
    NODE_MAP: "it was recorded on a CPU, where no CUDA graph is captured: record on a GPU, or eager work by module with --windows modules",
    SETTINGS: "it was recorded on a CPU, where no such library is loaded",
}


def collected(trace: Trace) -> bool:
    """Whether the collector made the recording."""
    recording = trace.metadata.get("recording")
    return isinstance(recording, Mapping) and recording.get("source") == "collector"


def on_a_cpu(trace: Trace) -> bool:
    """Whether the recording says that it was made on a CPU."""
    recording = trace.metadata.get("recording")
    return isinstance(recording, Mapping) and recording.get("device") == "cpu"


def advice(trace: Trace, lacking: str, instead: str = "") -> str:
    """What would fill the gap.

    Args:
        trace: the recording.
        lacking: one of the names above.
        instead: what the user may give on the command line, ``give --draft-steps``.

    Returns:
        One clause for the end of a message; it never tells someone to do what made this very recording.
    """
    if collected(trace):
        words = _ON_A_CPU.get(lacking) if on_a_cpu(trace) else None
        words = words or _COLLECTED[lacking]
    else:
        words = _ELSEWHERE[lacking]
    return f"{words}; or {instead}" if instead else words
