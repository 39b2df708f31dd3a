"""What the collector costs the real vLLM engine on a CPU: absent, idle, and recording phases, in turns in one process.

    VLLM_ENABLE_V1_MULTIPROCESSING=0 OMP_NUM_THREADS=1 python benchmarks/vllm_cost.py MODELS [ROUNDS]

Run with the interpreter that has vLLM; MODELS is what tests/support/counting_models.py wrote. The three states take turns
in random order, so that drift of a shared machine hits all alike. A turn is some generations, the first of which is left out:
exchanging methods makes the interpreter specialise its code anew, and arming starts a thread. Times are a generation's:
wall clock, and CPU time of the thread that runs the steps, which other processes disturb less. Each figure is the median
over rounds of state / absent within the round, with a 95 % bootstrap interval. ``control`` is absent once more: what
it differs by is what this machine cannot tell.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

TOKENS = 200
GENERATIONS = 4
STATES = ("absent", "control", "idle", "phases")


def main(models: Path, rounds: int) -> None:
    for name, value in (("HF_HUB_OFFLINE", "1"), ("VLLM_CPU_KVCACHE_SPACE", "1"), ("TORCHDYNAMO_DISABLE", "1")):
        os.environ.setdefault(name, value)
    os.environ["SPECANALYZE"] = "0"  # the hooks are put in and taken out below
    from vllm import LLM, SamplingParams

    from speccollect import control
    from speccollect.config import PHASES_ONLY
    from speccollect.engines import vllm
    from speccollect.recorder import Recorder

    speculation = {"method": "eagle3", "num_speculative_tokens": 3, "model": str(models / "eagle3")}
    engine = LLM(
        model=str(models / "target"), enforce_eager=True, max_model_len=2048, seed=0, speculative_config=speculation
    )
    sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    steps = 0

    def generate() -> Any:
        times = []
        for _ in range(GENERATIONS):
            wall, cpu = time.perf_counter(), time.thread_time()
            engine.generate([{"prompt_token_ids": list(range(10))}], sampling, use_tqdm=False)
            times.append((time.perf_counter() - wall, time.thread_time() - cpu))
        return np.median(times[1:], axis=0)

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        recorder = Recorder(folder)

        def measure(state: str) -> Any:
            nonlocal steps
            installed = vllm.install(recorder)
            if state in ("absent", "control"):
                installed.remove()
                return generate()
            try:
                if state == "idle":
                    return generate()
                control.arm(folder, PHASES_ONLY)
                recorder.poll()
                times = generate()
                recording = recorder._recording
                assert recording is not None
                steps = recording.next_cycle // GENERATIONS
                control.disarm(folder)
                recorder.poll()
                return times
            finally:
                installed.remove()

        for state in STATES:
            measure(state)
        times = np.zeros((rounds, len(STATES), 2))
        for turn in range(rounds):
            for state in random.sample(STATES, len(STATES)):
                times[turn, STATES.index(state)] = measure(state)
        recorder.close()
    report(times, steps)


def report(times: Any, steps: int) -> None:
    """``times``: rounds x STATES x (wall, thread CPU), seconds."""
    generator = np.random.default_rng(0)
    print(f"{len(times)} rounds of {steps} steps; absent: {np.median(times[:, 0, 0]) / steps * 1e3:.3f} ms a step")
    for place, state in enumerate(STATES[1:], 1):
        for kind, name in enumerate(("wall", "thread CPU")):
            ratios = times[:, place, kind] / times[:, 0, kind]
            picks = generator.integers(0, len(ratios), (2000, len(ratios)))
            low, high = np.percentile(np.median(ratios[picks], axis=1), (2.5, 97.5))
            extra = np.median(times[:, place, kind] - times[:, 0, kind]) / steps * 1e6
            print(f"{state:8} {name:11} x {np.median(ratios):.4f} ({low:.4f} to {high:.4f}), {extra:+.1f} us a step")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 30)
