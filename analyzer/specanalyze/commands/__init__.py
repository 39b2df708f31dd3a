"""One command a module: check the arguments, call one function, hand the result to one renderer."""

from __future__ import annotations

from typing import Final, NamedTuple


class Command(NamedTuple):
    """What ``--help`` says of a command without importing it.

    Attributes:
        module: in this package; has ``register(app)`` and imports nothing heavy at its top.
        group: heading in ``specanalyze --help``.
        summary: the first paragraph of the command's docstring.
    """

    module: str
    group: str
    summary: str


_TIME: Final = "Where the time goes"
_DECIDE: Final = "What to change"
_TRUST: Final = "What was recorded"
_FILES: Final = "Files"

COMMANDS: Final = {
    "breakdown": Command(
        "breakdown",
        _TIME,
        "Where verify's time goes: graph replay, allreduce, MoE, attention, GEMM, host; exact to the nanosecond.",
    ),
    "phases": Command(
        "phases",
        _TIME,
        "The cycle: draft, verify, draft extend, other, in ms and %; accept length, tok/s, inter-token latency.",
    ),
    "layers": Command(
        "layers",
        _TIME,
        "Inside the graph replay: time, exposed allreduce and gaps by layer and module; outlier layers named.",
    ),
    "kernels": Command("kernels", _TIME, "Top kernels by phase and class, with counts and spread."),
    "ranks": Command(
        "ranks",
        _TIME,
        "Skew and stragglers: waiting and transfer of every collective that all ranks recorded; kernels slower on some ranks.",
    ),
    "diagnose": Command(
        "diagnose",
        _DECIDE,
        "What to change first: findings ranked by the time each token would win, with evidence, knob and what would disprove it.",
    ),
    "breakeven": Command(
        "breakeven",
        _DECIDE,
        "The accept length that pays: cycle time / baseline step time; where the trace stands, tok/s won or lost.",
    ),
    "accept": Command(
        "accept",
        _DECIDE,
        "Accept length and acceptance by position, request, batch size, draft length and time; against the server's count.",
    ),
    "compare": Command(
        "compare",
        _DECIDE,
        "What differs between two recordings: the environment first, then what moved beyond noise, then kernels.",
    ),
    "sweep": Command(
        "sweep",
        _DECIDE,
        "Which setting is best: fixed and per-token cost of verify, tok/s measured and predicted for every step count.",
    ),
    "whatif": Command(
        "whatif", _DECIDE, "What a change would give: predicted cycle and tok/s, with every assumption said."
    ),
    "env": Command(
        "env", _TRUST, "What ran: GPUs, driver, CUDA, NCCL, server and its arguments, variables, ranks, windows."
    ),
    "overhead": Command(
        "overhead",
        _TRUST,
        "What observing cost: cycle time inside the profiler's windows against outside, before and after.",
    ),
    "validate": Command("validate", _TRUST, "Is the trace whole and sound: sums, coverage, launches, clocks, names."),
    "report": Command(
        "report",
        _FILES,
        "One self-contained HTML page with the plots and their tables; works offline, in dark mode and on paper.",
    ),
    "import": Command(
        "import_trace",
        _FILES,
        "Turn torch.profiler JSON(.gz) or an Nsight Systems export, files or a folder of ranks, into trace.parquet.",
    ),
    "export": Command("export", _FILES, "Write the recording for Nsight Systems, Perfetto or chrome://tracing."),
    "redact": Command(
        "redact",
        _FILES,
        "Make a trace fit to attach to a public issue: no names of models, people, machines and paths; all times and kernels.",
    ),
}
"""Name on the command line -> what it is, in the order of ``--help``."""
