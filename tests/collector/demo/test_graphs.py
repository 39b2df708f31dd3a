"""What a CUDA graph needs of the embedded engine's phases, held on machines without a GPU, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from speccollect.demo.config import DemoConfig
from speccollect.demo.experts import GroupedExperts, TopK
from speccollect.demo.graphs import PhaseGraphs, graph_batch_sizes
from speccollect.demo.parallel import TensorParallel
from speccollect.demo.weights import WeightSource
from speccollect.demo.worker import SpeculativeWorker

META = torch.device("meta")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny products are slower on several threads, much slower where the cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class OnlyMeta(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fails on any tensor that lives elsewhere than on the meta device."""

    operators = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operators += 1
        for leaf in tree_leaves((args, kwargs, result)):
            assert not isinstance(leaf, torch.Tensor) or leaf.device == META, f"{func} uses a tensor on {leaf.device}"
        return result


@pytest.mark.parametrize("sorted_experts", [False, True])
def test_captured_phases_read_nothing_back_and_make_nothing_on_the_host(
    sorted_experts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the meta device tensors have no values: reading one, or a shape that depends on one, is an error."""
    monkeypatch.setattr(WeightSource, "_generator", lambda self, name, device: None)  # meta has no generators
    with torch.inference_mode():
        config = DemoConfig(max_batch=3, steps=3, dtype="bfloat16")
        worker = SpeculativeWorker(config, TensorParallel(), META)
        for layer in worker.target.layers:
            layer.mlp.experts.sorted = sorted_experts  # type: ignore[union-attr]
        for phase in (worker._draft, worker._verify, worker._draft_extend, worker._decode):
            with OnlyMeta() as watch:  # type: ignore[no-untyped-call]
                phase(2)
            assert watch.operators > 20


def test_sorted_experts_compute_what_batched_ones_do() -> None:
    """The grouped product that GPUs use, and the one that machines without it use."""
    config = DemoConfig(dtype="bfloat16")
    experts = GroupedExperts(config, "experts", WeightSource(config, torch.device("cpu")), TensorParallel(), 1.0)
    generator = torch.Generator().manual_seed(0)
    for tokens in (1, 3, 40):
        x = torch.randn(tokens, config.hidden, generator=generator).bfloat16()
        weights, chosen = TopK(config.top_k)(torch.randn(tokens, config.experts, generator=generator))
        batched, grouped = experts._batched(x, weights, chosen), experts._grouped(x, weights, chosen)
        torch.testing.assert_close(grouped, batched, atol=0.02, rtol=0.02)


@pytest.mark.parametrize(("largest", "sizes"), [(1, (1,)), (3, (1, 2, 3)), (8, (1, 2, 4, 8)), (9, (1, 2, 4, 8, 9))])
def test_batches_are_padded_to_few_sizes(largest: int, sizes: tuple[int, ...]) -> None:
    assert graph_batch_sizes(largest) == sizes


def test_nothing_captured_means_eager() -> None:
    assert PhaseGraphs().size_for(1) is None
