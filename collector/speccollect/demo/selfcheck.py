"""``python -m speccollect.demo.selfcheck``: does the embedded engine hold what it promises on this machine, and how fast is it?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from speccollect.demo.main import DemoResult, run_demo
from specschema.errors import SpecError


def check(shape: dict[str, Any], *, batches: tuple[int, ...], say: Callable[[str], None]) -> list[str]:
    """Compare speculation with plain decoding, and CUDA graphs with eager execution where there are graphs.

    Args:
        shape: keyword arguments of ``run_demo`` that all runs share.
        batches: batch sizes; each serves one request more than that, so that rows get free and are taken again.
        say: takes one line of text at a time.

    Returns:
        One line for each promise that was broken.
    """
    broken = []
    for batch in batches:
        runs: dict[str, DemoResult] = {}
        ways: tuple[tuple[str, dict[str, Any]], ...] = (
            ("plain", {"speculate": False}),
            ("speculative", {"speculate": True}),
            ("plain, eager", {"speculate": False, "eager": True}),
            ("speculative, eager", {"speculate": True, "eager": True}),
        )
        for name, options in ways:
            if "eager" in options and runs["plain"].device == "cpu":
                continue
            runs[name] = run = run_demo(
                None, **shape, **options, batch_size=batch, requests=batch + 1, time_phases=True
            )
            accept = run.mean_accept_length or 0.0
            phases = ", ".join(f"{phase} {ns / 1e6:.3f} ms" for phase, ns in run.phase_ns.items())
            say(f"batch {batch}, {name}: {run.tokens_per_second:.1f} tok/s, accept length {accept:.2f}; {phases}")
            if run.tokens != runs["plain"].tokens:
                broken.append(f"batch {batch}: {name} {_first_difference(run, runs['plain'])}")
    return broken


def _first_difference(run: DemoResult, plain: DemoResult) -> str:
    for request, (mine, right) in enumerate(zip(run.tokens, plain.tokens, strict=True)):
        if mine != right:
            place = next(
                (n for n, (a, b) in enumerate(zip(mine, right, strict=False)) if a != b), min(len(mine), len(right))
            )
            return f"differs from plain decoding in request {request} at token {place}"
    return "differs from plain decoding"


def main() -> int:
    """Run the check from the command line; 0 when every promise holds."""
    parser = argparse.ArgumentParser(prog="python -m speccollect.demo.selfcheck", description=__doc__)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--max-tokens", type=int, default=100)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"))
    options = vars(parser.parse_args())
    batches = tuple(options.pop("batch"))
    try:
        broken = check(options, batches=batches, say=lambda line: _write(sys.stdout, line))
    except SpecError as error:
        _write(sys.stderr, str(error))
        return 2
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
