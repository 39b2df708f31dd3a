"""Runs the embedded engine once and records it: ``speccollect demo`` as a function."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from speccollect.config import FOLDER_VARIABLE, SWITCH_VARIABLE, WindowSettings, parse_windows
from speccollect.control import word
from speccollect.control.wait import wait_for_ranks
from speccollect.demo.config import DemoConfig
from speccollect.demo.launcher import agreed, run_ranks
from speccollect.demo.rank import RankTask, Way
from speccollect.demo.shape import build_config, build_requests, choose_device, longest_request
from speccollect.trace.merge import Merged, merge
from speccollect.trace.output_path import refuse_output

MAX_RECORD: Final = 40
"""Cycles of one window at most, unless asked for."""


@dataclass(frozen=True)
class DemoResult:
    """What the engine itself says about its run, to hold the trace against."""

    output: Path | None
    """The trace; None where none was asked for."""
    config: DemoConfig
    device: str
    """cuda or cpu."""
    prompts: list[list[int]]
    """Token ids of each request's prompt."""
    tokens: list[list[int]]
    """Completion tokens of each request, equal on all ranks."""
    accept_lengths: list[list[int]]
    """Tokens committed by each cycle after prefill, per request. Their sum is one less than the completion: prefill gives the first token."""
    seconds: float
    """From the first prefill to the last token, on rank 0, recording included."""
    merged: Merged | None
    """What merging the ranks' files found; None where no trace was asked for."""

    @property
    def tokens_per_second(self) -> float:
        """Completion tokens of all requests over the seconds."""
        return sum(len(tokens) for tokens in self.tokens) / self.seconds

    @property
    def mean_accept_length(self) -> float | None:
        """Over (request, cycle) pairs; None where no cycle ran."""
        lengths = [length for request in self.accept_lengths for length in request]
        return sum(lengths) / len(lengths) if lengths else None


def run_demo(
    output: Path | None,
    *,
    tp: int = 1,
    steps: int = 2,
    batch_size: int = 1,
    requests: int | None = None,
    prompt_tokens: int = 64,
    max_tokens: int = 200,
    stop_token: int | None = None,
    layers: int = 8,
    hidden: int = 256,
    experts: int = 16,
    top_k: int = 4,
    intermediate: int | None = None,
    vocab: int = 2048,
    dtype: str | None = None,
    eager: bool = False,
    device: str = "auto",
    seed: int = 0,
    speculate: bool = True,
    windows: WindowSettings | str | None = None,
    force: bool = False,
) -> DemoResult:
    """Serve one long request (or several) on ``tp`` ranks and record them like a server.

    Args:
        output: trace to write; None runs without recording.
        tp: tensor-parallel ranks, one process and (on CUDA) one GPU each.
        steps: draft tokens proposed a cycle.
        batch_size: requests decoded together.
        requests: how many in all; ``batch_size`` of them if not given.
        prompt_tokens: length of the first prompt; each further one is 7 tokens longer.
        max_tokens: completion tokens of each request.
        stop_token: ends a completion early.
        layers, hidden, experts, top_k, intermediate, vocab: shape of the target; an expert's inner width is half of ``hidden``
            if not given. Heads follow from ``hidden``: 8, or more of 128 elements; half as many key-value heads.
        dtype: float32 or bfloat16; if not given bfloat16 on CUDA, float32 on a CPU.
        eager: no CUDA graphs. There are none on a CPU.
        device: auto, cuda or cpu.
        seed: decides weights and prompts.
        speculate: False decodes plainly: the baseline.
        windows: which cycles are profiled; text as on the command line; if not given, or if it
            names no counts of cycles, two windows that fit ``max_tokens``.
        force: overwrite ``output``.

    Returns:
        The engine's own account.

    Raises:
        UsageError: settings that can't be, ``output`` exists or can't be written, or not enough GPUs.
        RuntimeError: a rank failed, or ranks disagree.
    """
    if output is not None:
        refuse_output(output, force=force)
    chosen = choose_device(device, tp)
    count = requests if requests is not None else batch_size
    config = build_config(
        device=chosen,
        tp=tp,
        steps=steps,
        batch_size=batch_size,
        longest=longest_request(count, prompt_tokens, max_tokens),
        layers=layers,
        hidden=hidden,
        experts=experts,
        top_k=top_k,
        intermediate=intermediate,
        vocab=vocab,
        dtype=dtype,
        seed=seed,
    )
    fitting = fitting_windows(config, max_tokens, speculate)
    if isinstance(windows, str):  # cycles that are not spoken of shall fit the request
        settings = parse_windows(windows, None if "=" in windows else fitting)
    else:
        settings = windows or fitting
    served = build_requests(config, count, prompt_tokens, max_tokens, stop_token)
    task = RankTask(0, 0, chosen, config, served, (Way(speculate, eager),))
    folder = Path(tempfile.mkdtemp(prefix="specanalyze-demo-"))
    merged: Merged | None = None
    try:
        if output is None:
            results = run_ranks(task, {SWITCH_VARIABLE: "0"}, before=lambda: None, after=lambda: None)
        else:
            results = run_ranks(
                task,
                {SWITCH_VARIABLE: "1", FOLDER_VARIABLE: str(folder)},
                before=lambda: (word.arm(folder, settings), None)[1],
                after=lambda: (word.disarm(folder), None)[1],
            )
            recording = word.read_command(folder).recording
            late = wait_for_ranks(folder, recording)
            merged = merge(folder, output, recording=recording, force=force, expected_ranks=tp)
            merged.problems.extend(late)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    first = agreed(results)[0]
    return DemoResult(
        output=output,
        config=config,
        device=chosen,
        prompts=[list(request.prompt) for request in served],
        tokens=first.completions,
        accept_lengths=first.accept_lengths,
        seconds=first.seconds,
        merged=merged,
    )


def fitting_windows(config: DemoConfig, max_tokens: int, speculate: bool) -> WindowSettings:
    """Two profiler windows with untraced cycles before, between and after, in as many cycles as a request surely takes.

    A request too short for that gets one window and no control.
    """
    cycles = (max_tokens - 1) // (config.steps + 1 if speculate else 1)
    if cycles < 20:
        return WindowSettings(skip=0, warmup=0, record=max(1, cycles), repeat=min(1, cycles), gap=0)
    record = min(MAX_RECORD, cycles // 8)
    return WindowSettings(skip=cycles // 4, warmup=2, record=record, repeat=2, gap=cycles // 4)
