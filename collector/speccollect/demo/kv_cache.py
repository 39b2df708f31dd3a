"""Keys and values of every layer, allocated once."""

from __future__ import annotations

import torch


class KVCache:
    """Preallocated cache of a model: row = request, so that a batch is the first rows and a CUDA graph sees fixed addresses.

    ``keys`` and ``values`` are [layers, rows, max_context, kv_heads of this rank, head_dim].
    """

    def __init__(
        self,
        layers: int,
        rows: int,
        max_context: int,
        kv_heads: int,
        head_dim: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (layers, rows, max_context, kv_heads, head_dim)
        # Zeros, not empty: a masked position still takes part in the product, and 0 x NaN is NaN.
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)

    @property
    def max_context(self) -> int:
        """Tokens a row holds."""
        return self.keys.shape[2]

    def rows(self, first: int, count: int) -> CacheRows:
        """The rows of one batch (a view)."""
        return CacheRows(self.keys[:, first : first + count], self.values[:, first : first + count])

    def move_row(self, source: int, target: int) -> None:
        """Copy one request's row over another's, to keep the running batch the first rows."""
        self.keys[:, target].copy_(self.keys[:, source])
        self.values[:, target].copy_(self.values[:, source])


class CacheRows:
    """A batch's view of the cache."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.keys = keys
        self.values = values
        self._row = torch.arange(keys.shape[1], device=keys.device)[:, None]

    def write(
        self, layer: int, positions: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new keys and values and return everything the layer holds.

        Args:
            layer: layer index.
            positions: [batch, tokens] position of each token in its row.
            keys: [batch, tokens, kv_heads, head_dim], likewise values.

        Returns:
            Keys and values of all positions, [batch, kv_heads, max_context, head_dim] each.
        """
        self.keys[layer].index_put_((self._row, positions), keys)
        self.values[layer].index_put_((self._row, positions), values)
        return self.keys[layer].transpose(1, 2), self.values[layer].transpose(1, 2)
