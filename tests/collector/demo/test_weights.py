"""The embedded engine's target follows the rule built into its weights, with a margin that rounding can't cross."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from speccollect.demo.config import POSITION_LAG, DemoConfig
from speccollect.demo.layers import new_cache
from speccollect.demo.model import TargetModel
from speccollect.demo.parallel import TensorParallel
from speccollect.demo.weights import WeightSource, transition

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny products are slower on several threads, much slower where the cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_target_follows_its_rule_by_a_margin(dtype: str) -> None:
    config = DemoConfig(layers=4, dtype=dtype, max_context=320)
    source = WeightSource(config, CPU)
    rule = transition(source)
    tokens = torch.randint(0, config.vocab, (1, 300), generator=torch.Generator().manual_seed(7))
    with torch.inference_mode():
        model = TargetModel(config, source, TensorParallel())
        cache = new_cache(config, config.layers, TensorParallel(), CPU)
        seen: list[torch.Tensor] = []
        model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(output))
        chosen, _ = model(tokens, torch.zeros(1, dtype=torch.int64), cache.rows(0, 1))
    logits = seen[0][0, POSITION_LAG:].float()

    bit = rule.code[tokens[0, :-POSITION_LAG]]
    last = tokens[0, POSITION_LAG:]
    expected = torch.where(bit > 0, rule.high[last], rule.low[last])
    assert torch.equal(chosen[0, POSITION_LAG:], expected)
    best, second = logits.topk(2, dim=-1).values.unbind(dim=-1)
    # logits are about 8 and bfloat16 tells apart steps of 1/32 there
    assert float((best - second).min()) > 1.0


def test_the_seed_decides_every_weight() -> None:
    def weights(seed: int) -> dict[str, torch.Tensor]:
        config = DemoConfig(layers=1, seed=seed)
        return dict(TargetModel(config, WeightSource(config, CPU), TensorParallel()).named_parameters())

    first, same, other = weights(0), weights(0), weights(1)
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first if "norm" not in name)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"kv_heads": 3}, "heads must be 2, 3, ... times kv_heads"),
        ({"tp": 3}, "kv_heads 4 can't be split over 3 ranks"),
        ({"top_k": 17}, "top_k 17 is more than the 16 experts"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"dtype": "float64"}, "dtype must be one of float32, bfloat16"),
        ({"max_context": 100}, "max_context must be a multiple of 64"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        DemoConfig(**settings)  # type: ignore[arg-type]
