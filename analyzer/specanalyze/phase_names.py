"""Which range names mean which phase: the collector's own, then what servers emit, then what the user maps."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from specschema.errors import UsageError
from specschema.phases import CYCLE, LEAF_PHASES, RANGE_PREFIX, phase_of_range

SERVER_NAMES: tuple[tuple[str, str, str], ...] = (
    (r"^draft$", "draft", "SGLang >= 0.5.14, spec_stage_span in eagle_worker_v2.py"),
    (
        r"^draft_extend$",
        "draft_extend",
        "SGLang >= 0.5.14, spec_stage_span in eagle_worker_v2.py; also used in prefill",
    ),
    (r"^step\[(TARGET_)?VERIFY( |\])", "verify", "SGLang >= 0.5.11, ModelRunner.forward; TARGET_ in 0.5.17"),
    (r"^step\[DRAFT_EXTEND(_V2)?( |\])", "draft_extend", "SGLang >= 0.5.11, ModelRunner.forward of the draft model"),
    (r"^step\[DECODE( |\])", "decode", "SGLang >= 0.5.11; inside draft it is the draft model's own forward"),
    (r"^step\[(EXTEND|MIXED|PREFILL)( |\])", "prefill", "SGLang >= 0.5.11, ModelRunner.forward"),
    (r"^step\[IDLE( |\])", "idle", "SGLang >= 0.5.11, a data-parallel rank without requests"),
    (r"^gpu_model_runner: draft$", "draft", "vLLM >= 0.15 with custom scopes; holds the re-extend, its first forward"),
    (r"^gpu_model_runner: forward$", "decode", "vLLM >= 0.15 with custom scopes; verify where the process drafts"),
    (
        r"^execute_(\d+_)?context_\d+\(.*\)_generation_0\(",
        "prefill",
        "vLLM, execute_model's annotation, no decode request",
    ),
    (r"^execute_(\d+_)?context_\d+\(.*\)_generation_\d+\(", "decode", "vLLM, execute_model's annotation"),
)
"""(pattern, phase, where the name comes from). Used only in a process that has no ``spec.*`` range (rule D10)."""

DRAFTING = re.compile(r"^gpu_model_runner: draft$")
"""A vLLM process with this range speculates, so its decode forwards are verify forwards."""


_PHASE_WORDS: Final = frozenset({"draft", "verify", "prefill", "decode"})
"""Words that make a range's name look like a phase; ``idle`` and ``extend`` are said of too much else."""


_LARGEST_MAP: Final = 1 << 20
"""Bytes of a phase map; one line a phase is a few hundred."""


def read_phase_map(path: Path) -> dict[str, str]:
    """Read a ``--phase-map`` file: a JSON object, regular expression -> phase.

    Raises:
        UsageError: not a JSON object, a pattern that does not compile, or a phase that does not exist.
    """
    try:
        size = path.stat().st_size
        if size > _LARGEST_MAP:
            raise UsageError(
                f"{path} takes {size >> 20} MiB: a phase map is a JSON object, regular expression -> phase"
            )
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read the phase map {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text: a phase map is a JSON object, regular expression -> phase") from None
    try:
        mapping = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} is not JSON ({error}): a phase map is an object, regular expression -> phase"
        ) from None
    if not isinstance(mapping, dict) or not mapping:
        raise UsageError(f"{path}: a phase map is a JSON object, regular expression -> phase")
    return check_phase_map(mapping)


def check_phase_map(mapping: Mapping[str, object]) -> dict[str, str]:
    """The mapping itself, once each pattern compiles and each phase exists.

    Raises:
        UsageError: otherwise.
    """
    allowed = (*LEAF_PHASES, CYCLE)
    checked = {}
    for pattern, phase in mapping.items():
        if not isinstance(phase, str) or phase not in allowed:
            raise UsageError(f"phase map: {str(phase)[:80]!r} is no phase; use one of {', '.join(allowed)}")
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise UsageError(f"phase map: pattern {pattern[:80]!r} does not compile: {error}") from None
        checked[pattern] = phase
    return checked


def resembling(unrecognised: Iterable[str]) -> list[str]:
    """Names that are no phase and look like one: a user's own ``verify`` or ``my_draft``, which only a phase map makes one.

    Args:
        unrecognised: names that ``recognise`` gave no phase. Ours are sub-phases there, and a server's ranges in a process with
            ours are left aside on purpose (rule D10): neither counts.
    """
    servers = [re.compile(pattern) for pattern, _, _ in SERVER_NAMES]
    return [
        name
        for name in unrecognised
        if not name.startswith(RANGE_PREFIX)
        and _PHASE_WORDS & set(re.split(r"[^a-z]+", name.lower()))
        and not any(pattern.search(name) for pattern in servers)
    ]


def resembled(name: str) -> str:
    """The phase that a name found by ``resembling`` looks like: ``my_draft_extend`` -> ``draft_extend``."""
    words = set(re.split(r"[^a-z]+", name.lower()))
    if {"draft", "extend"} <= words:
        return "draft_extend"
    return next(p for p in ("verify", "draft", "prefill", "decode") if p in words)


def recognise(names: Sequence[str], phase_map: Mapping[str, str] | None = None) -> list[str | None]:
    """Phase of each distinct range name of one process.

    Args:
        names: distinct names.
        phase_map: regular expression -> phase; wins over everything built in.

    Returns:
        Leaf phase, ``cycle``, or None for a name that is no phase (sub-phases included).
    """
    own = any(name.startswith(RANGE_PREFIX) for name in names)
    drafting = any(DRAFTING.search(name) for name in names)
    mapped = [(re.compile(pattern), phase) for pattern, phase in (phase_map or {}).items()]
    builtin = [] if own else [(re.compile(pattern), phase) for pattern, phase, _ in SERVER_NAMES]
    phases: list[str | None] = []
    for name in names:
        phase = next((p for pattern, p in mapped if pattern.search(name)), None)
        if phase is None and own:
            ours = phase_of_range(name)
            phase = ours if ours in LEAF_PHASES or ours == CYCLE else None
        elif phase is None:
            phase = next((p for pattern, p in builtin if pattern.search(name)), None)
            if phase == "decode" and drafting:
                phase = "verify"
        phases.append(phase)
    return phases
