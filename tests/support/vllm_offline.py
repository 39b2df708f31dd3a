"""One generation with vLLM's offline engine, recorded or not. Run with the interpreter that has vLLM.

    python vllm_offline.py '{"models": FOLDER, "method": "eagle3", "trace": FILE, ...}'

prints one line ``RESULT {json}``: the tokens of each request and what vLLM's own counters say.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import Any

DRAFTS = {"eagle3": "eagle3", "eagle": "eagle", "draft_model": "draft"}


def main(job: dict[str, Any]) -> None:
    from vllm import LLM, SamplingParams

    import speccollect

    if job.get("asynchronous"):
        _schedule_asynchronously()
    models, method = job["models"], job.get("method")
    speculation = None
    if method is not None:
        speculation = {"method": method, "num_speculative_tokens": job.get("drafts", 3)}
        if method in DRAFTS:
            speculation["model"] = f"{models}/{DRAFTS[method]}"
    engine = LLM(
        model=f"{models}/{'mtp' if method == 'mtp' else 'target'}",
        load_format="dummy" if method == "mtp" else "auto",
        tensor_parallel_size=job.get("tensor_parallel", 1),
        enforce_eager=True,
        max_model_len=2048,
        disable_log_stats=False,
        seed=0,
        speculative_config=speculation,
        **job.get("more", {}),
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in job["prompts"]]
    settings = [SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True) for tokens in job["tokens"]]
    recorded: Any = contextlib.nullcontext()
    if job.get("trace"):
        recorded = speccollect.record(job["trace"], windows=job.get("windows", "off"), force=True)
    seconds = []
    with recorded:
        for _ in range(job.get("repeat", 1)):
            begun = time.perf_counter()
            outputs = engine.generate(prompts, settings, use_tqdm=False)
            seconds.append(time.perf_counter() - begun)
    counters = {metric.name: metric.value for metric in engine.get_metrics() if hasattr(metric, "value")}
    result = {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "seconds": seconds,
        "counters": {name: value for name, value in counters.items() if "spec_decode" in name},
    }
    print("RESULT", json.dumps(result), flush=True)  # noqa: T201


def _schedule_asynchronously() -> None:
    """vLLM switches asynchronous scheduling off on a CPU, which needs none; on a GPU it is the default."""
    from vllm.platforms import current_platform

    platform = type(current_platform)
    check = platform.check_and_update_config

    def checked(config: Any) -> None:
        check(config)
        config.scheduler_config.async_scheduling = True

    platform.check_and_update_config = staticmethod(checked)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
