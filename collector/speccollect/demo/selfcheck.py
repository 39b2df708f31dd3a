"""``python -m speccollect.demo.selfcheck``: does the embedded engine hold what it promises on this machine, and how fast is it?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, Final

from speccollect.config import SWITCH_VARIABLE
from speccollect.demo.config import DemoConfig
from speccollect.demo.launcher import agreed, run_ranks
from speccollect.demo.rank import RankTask, Way
from speccollect.demo.request import Request
from speccollect.demo.shape import build_config, build_requests, choose_device, longest_request
from specschema.errors import SpecError

PROMPT_TOKENS: Final = 64

PLAIN: Final = Way(speculate=False, eager=True)
SPECULATIVE: Final = Way(speculate=True, eager=True)
PLAIN_GRAPHS: Final = Way(speculate=False, eager=False)
SPECULATIVE_GRAPHS: Final = Way(speculate=True, eager=False)
NAMES: Final = {
    PLAIN: "plain",
    SPECULATIVE: "speculative",
    PLAIN_GRAPHS: "plain, CUDA graphs",
    SPECULATIVE_GRAPHS: "speculative, CUDA graphs",
}


def check(config: DemoConfig, requests: tuple[Request, ...], *, device: str, say: Callable[[str], None]) -> list[str]:
    """Compare speculation with plain decoding, and CUDA graphs with eager execution where there are graphs.

    Args:
        config: the engine. A batch smaller than the number of requests lets rows get free and be taken again.
        requests: what every way serves.
        device: cuda or cpu.
        say: takes one line of text at a time.

    Returns:
        One line for each promise that was broken.
    """
    ways = (PLAIN, SPECULATIVE) if device == "cpu" else tuple(NAMES)
    task = RankTask(0, 0, device, config, requests, ways, time_phases=True)
    results = agreed(run_ranks(task, {SWITCH_VARIABLE: "0"}, before=lambda: None, after=lambda: None))
    broken = []
    for way, result in zip(ways, results, strict=True):
        lengths = [length for request in result.accept_lengths for length in request]
        tokens = sum(len(completion) for completion in result.completions)
        phases = ", ".join(f"{phase} {ns / 1e6:.3f} ms" for phase, ns in result.phase_ns.items())
        say(
            f"{NAMES[way]}: {tokens / result.seconds:.1f} tok/s, "
            f"accept length {sum(lengths) / max(1, len(lengths)):.2f}; {phases}"
        )
        difference = first_difference(result.completions, results[0].completions)
        if difference is not None:
            broken.append(f"{NAMES[way]} differs from plain decoding {difference}")
    return broken


def first_difference(mine: list[list[int]], right: list[list[int]]) -> str | None:
    """Where two runs' completions part, in words; None where they don't."""
    for request, (a, b) in enumerate(zip(mine, right, strict=True)):
        if a != b:
            place = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
            return f"in request {request} at token {place}"
    return None


def main() -> int:
    """Run the check from the command line; 0 when every promise holds."""
    parser = argparse.ArgumentParser(prog="python -m speccollect.demo.selfcheck", description=__doc__)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--max-tokens", type=int, default=100)
    parser.add_argument("--batch", type=int, default=3, help="one request more than this is served")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"))
    options = parser.parse_args()
    try:
        device = choose_device(options.device, options.tp)
        config = build_config(
            device=device,
            tp=options.tp,
            steps=options.steps,
            batch_size=options.batch,
            longest=longest_request(options.batch + 1, PROMPT_TOKENS, options.max_tokens),
            layers=options.layers,
            hidden=options.hidden,
            dtype=options.dtype,
            seed=options.seed,
        )
    except SpecError as error:
        _write(sys.stderr, str(error))
        return 2
    requests = build_requests(config, options.batch + 1, PROMPT_TOKENS, options.max_tokens)
    broken = check(config, requests, device=device, say=lambda line: _write(sys.stdout, line))
    for line in broken:
        _write(sys.stdout, f"BROKEN: {line}")
    if not broken:
        _write(sys.stdout, "every run gave the tokens of plain decoding")
    return 1 if broken else 0


def _write(stream: Any, line: str) -> None:
    stream.write(line + "\n")
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
