"""Settings of the embedded engine, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""Name -> element type of weights and caches. bfloat16 is for GPUs, where grouped expert kernels want it."""

POSITION_LAG: Final = 16
"""How many tokens back the target's position head looks (weights.py). A prompt has to be longer."""


@dataclass(frozen=True)
class DemoConfig:
    """Shape of the target model and of the serving loop."""

    layers: int = 8
    """Decoder layers of the target; the draft always has one."""
    hidden: int = 256
    """Width of the residual stream."""
    heads: int = 8
    """Query heads; a multiple of kv_heads and at least twice as many."""
    kv_heads: int = 4
    """Key-value heads; a multiple of the tensor-parallel size."""
    experts: int = 16
    """Routed experts a layer."""
    top_k: int = 4
    """Routed experts a token."""
    intermediate: int = 128
    """Width inside one expert (and inside the shared one)."""
    vocab: int = 2048
    """Tokens; an even number and a multiple of the tensor-parallel size."""
    steps: int = 2
    """Draft tokens proposed a cycle. Verify scores one more."""
    max_batch: int = 1
    """Requests decoded together."""
    max_context: int = 512
    """Tokens a cache row holds: prompt, completion and the steps + 1 tokens that verify may write beyond them."""
    dtype: str = "float32"
    """A key of DTYPES."""
    seed: int = 0
    """Decides every weight."""
    tp: int = 1
    """Ranks that share each layer."""

    def __post_init__(self) -> None:
        for name in ("layers", "experts", "top_k", "intermediate", "steps", "max_batch", "tp"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, not {self.dtype!r}")
        if self.hidden < 128 or self.hidden % self.heads or (self.hidden // self.heads) % 8:
            raise ValueError(
                f"hidden must be at least 128 and give heads of a multiple of 8, not {self.hidden} over {self.heads} heads"
            )
        if self.kv_heads < 1 or self.heads % self.kv_heads or self.heads < 2 * self.kv_heads:
            raise ValueError(f"heads must be 2, 3, ... times kv_heads, not {self.heads} over {self.kv_heads}")
        if self.top_k > self.experts:
            raise ValueError(f"top_k {self.top_k} is more than the {self.experts} experts")
        if self.vocab < 16 or self.vocab % 2:
            raise ValueError(f"vocab must be even and at least 16, not {self.vocab}")
        for name in ("kv_heads", "intermediate", "vocab"):
            if getattr(self, name) % self.tp:
                raise ValueError(f"{name} {getattr(self, name)} can't be split over {self.tp} ranks")
        if self.max_context % 64 or self.max_context <= POSITION_LAG + self.steps + 2:
            raise ValueError(f"max_context must be a multiple of 64 and hold a prompt, not {self.max_context}")

    @property
    def head_dim(self) -> int:
        """Elements of one head."""
        return self.hidden // self.heads

    @property
    def torch_dtype(self) -> torch.dtype:
        """Element type of weights and caches."""
        return DTYPES[self.dtype]

    @property
    def feature_layers(self) -> tuple[int, int, int]:
        """Layers whose outputs the draft sees: a low, a middle and the last one, as EAGLE-3 takes them."""
        return min(1, self.layers - 1), self.layers // 2, self.layers - 1
