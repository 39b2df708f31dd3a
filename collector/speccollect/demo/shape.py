"""From a command line's few numbers to a whole configuration, a device and requests."""

from __future__ import annotations

import torch

from speccollect.demo.config import POSITION_LAG, DemoConfig
from speccollect.demo.request import Request
from specschema.errors import UsageError

PROMPT_STEP = 7
"""Tokens by which each prompt is longer than the one before, so that no batch is of one length."""


def choose_device(device: str, tp: int) -> str:
    """cuda or cpu; auto takes CUDA where there is a GPU for each rank.

    Raises:
        UsageError: an unknown device, or too few GPUs.
    """
    if device not in ("auto", "cuda", "cpu"):
        raise UsageError(f"device must be auto, cuda or cpu, not {device!r}")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "cuda" and gpus < tp:
        raise UsageError(f"{tp} ranks need {tp} GPUs, this machine shows {gpus}: lower --tp, or --device cpu")
    return "cuda" if device != "cpu" and gpus >= tp else "cpu"


def build_config(
    *,
    device: str,
    tp: int = 1,
    steps: int = 2,
    batch_size: int = 1,
    longest: int,
    layers: int = 8,
    hidden: int = 256,
    experts: int = 16,
    top_k: int = 4,
    intermediate: int | None = None,
    vocab: int = 2048,
    dtype: str | None = None,
    seed: int = 0,
) -> DemoConfig:
    """Fill in what follows from the rest.

    Args:
        device: cuda or cpu; decides ``dtype`` if that is not given: bfloat16 on CUDA, float32 on a CPU.
        longest: tokens of the longest request, prompt and completion.
        intermediate: an expert's inner width; half of ``hidden`` if not given.
        tp, steps, batch_size, layers, hidden, experts, top_k, vocab, dtype, seed: as in DemoConfig. Heads follow from ``hidden``:
            8, or more of 128 elements; half as many key-value heads.

    Raises:
        UsageError: no model has this shape.
    """
    heads = max(8, hidden // 128)
    try:
        return DemoConfig(
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=heads // 2,
            experts=experts,
            top_k=top_k,
            intermediate=hidden // 2 if intermediate is None else intermediate,
            vocab=vocab,
            steps=steps,
            max_batch=batch_size,
            max_context=-(-(longest + steps + 1) // 64) * 64,
            dtype=dtype or ("bfloat16" if device == "cuda" else "float32"),
            seed=seed,
            tp=tp,
        )
    except ValueError as error:
        raise UsageError(f"the demo can't be built like this: {error}") from None


def longest_request(requests: int, prompt_tokens: int, max_tokens: int) -> int:
    """Tokens of the longest of ``build_requests``'s requests.

    Raises:
        UsageError: no such requests can be served.
    """
    if requests < 1 or prompt_tokens <= POSITION_LAG or max_tokens < 1:
        raise UsageError(
            f"the demo needs a request, a prompt of more than {POSITION_LAG} tokens and max_tokens of at least 1"
        )
    return prompt_tokens + PROMPT_STEP * (requests - 1) + max_tokens


def build_requests(
    config: DemoConfig, requests: int, prompt_tokens: int, max_tokens: int, stop_token: int | None = None
) -> tuple[Request, ...]:
    """Requests with prompts by the config's seed, ``prompt_tokens`` long and longer."""
    generator = torch.Generator().manual_seed(config.seed)
    return tuple(
        Request(
            request_id=f"demo-{n}",
            prompt=tuple(
                torch.randint(0, config.vocab, (prompt_tokens + PROMPT_STEP * n,), generator=generator).tolist()
            ),
            max_tokens=max_tokens,
            stop_token=stop_token,
        )
        for n in range(requests)
    )
