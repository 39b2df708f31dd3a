"""The worker: runs the phases of a cycle on this rank's device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from speccollect.demo.config import DemoConfig
from speccollect.demo.draft import DraftModel
from speccollect.demo.graphs import PhaseGraphs, graph_batch_sizes
from speccollect.demo.layers import new_cache
from speccollect.demo.model import TargetModel
from speccollect.demo.parallel import TensorParallel
from speccollect.demo.request import Batch
from speccollect.demo.speculation import accepted_drafts
from speccollect.demo.state import BatchState
from speccollect.demo.weights import WeightSource


@dataclass(eq=False)
class CycleResult:
    """What one cycle gave, on the host."""

    tokens: list[list[int]]
    """Tokens chosen by the target for each request of the batch, in batch order, before stop tokens and limits are looked at."""
    accepted_draft_tokens: list[int] | None
    """Draft tokens the verifier accepted for each request; None where nothing was drafted."""
    graph_batch_size: int | None
    """Batch size of the CUDA graphs that ran; None when eager."""


class SpeculativeWorker:
    """Target, draft, their caches and the running requests' state.

    A cycle is draft, verify, draft_extend (or decode, without speculation); the host reads its outcome once, at the end.
    Use it under ``torch.inference_mode()``.
    """

    def __init__(
        self,
        config: DemoConfig,
        parallel: TensorParallel,
        device: torch.device,
        *,
        speculate: bool = True,
        eager: bool = False,
    ) -> None:
        source = WeightSource(config, device)
        self.config = config
        self.device = device
        self.speculate = speculate
        self.target = TargetModel(config, source, parallel)
        self.target_cache = new_cache(config, config.layers, parallel, device)
        self.state = BatchState(config, device)
        if speculate:
            self.draft_model = DraftModel(config, source, parallel, self.target)
            self.draft_cache = new_cache(config, 1, parallel, device)
        self.graphs = PhaseGraphs()
        if device.type == "cuda" and not eager:
            self.graphs.capture(self._captured_phases(), graph_batch_sizes(config.max_batch))

    def _captured_phases(self) -> dict[str, Callable[[int], None]]:
        if not self.speculate:
            return {"decode": self._decode}
        phases: dict[str, Callable[[int], None]] = {"verify": self._verify, "draft_extend": self._draft_extend}
        if self.config.steps > 1:
            phases["draft"] = self._draft
        return phases

    def forward_batch(self, batch: Batch) -> CycleResult:
        """Run one cycle for a batch whose requests stand in rows 0, 1, ... (prefill: the one request, in the row the batch names)."""
        if batch.mode == "prefill":
            return CycleResult([[self.prefill(batch.sequences[0].tokens, batch.row)]], None, None)
        count = len(batch.sequences)
        size = self.graphs.size_for(count)
        if batch.mode == "decode":
            self.decode(count, size)
            chosen = self.state.last_token[:count].tolist()
            return CycleResult([[token] for token in chosen], None, size)
        self.draft(count, size)
        self.verify(count, size)
        self.draft_extend(count, size)
        outcome = self.state.outcome[:count].tolist()
        accepted = [row[0] for row in outcome]
        tokens = [row[1 : 2 + row[0]] for row in outcome]
        return CycleResult(tokens, accepted, size)

    def prefill(self, prompt: Sequence[int], row: int) -> int:
        """Fill a row's caches from a prompt and return the first token, which the host reads here."""
        state = self.state
        tokens = torch.tensor([prompt], dtype=torch.int64, device=self.device)
        nothing = torch.zeros(1, dtype=torch.int64, device=self.device)
        place = torch.full_like(nothing[:, None], len(prompt) - 1)
        first, features = self.target(tokens, nothing, self.target_cache.rows(row, 1), place)
        state.lengths[row] = len(prompt)
        state.last_token[row : row + 1].copy_(first[:, 0])
        if self.speculate:
            shifted = torch.cat((tokens[:, 1:], first), dim=1)
            proposed, hidden = self.draft_model(shifted, features, nothing, self.draft_cache.rows(row, 1), place)
            state.draft_hidden[row : row + 1].copy_(hidden[:, 0])
            state.drafts[row : row + 1, :1].copy_(proposed)
        return int(first.item())

    def draft(self, count: int, graph_size: int | None) -> None:
        """Propose the second to the last draft token of the first ``count`` rows; the first is there already."""
        self._run("draft", self._draft, count, graph_size)

    def verify(self, count: int, graph_size: int | None) -> None:
        """Score the last committed token and the drafts with the target, and accept."""
        self._run("verify", self._verify, count, graph_size)

    def draft_extend(self, count: int, graph_size: int | None) -> None:
        """Run the draft over the committed tokens with the target's features, commit them, and propose the next first token."""
        self._run("draft_extend", self._draft_extend, count, graph_size)

    def decode(self, count: int, graph_size: int | None) -> None:
        """One plain decoding step of the target."""
        self._run("decode", self._decode, count, graph_size)

    def move_row(self, source: int, target: int) -> None:
        """Let the request of one row continue in another."""
        self.state.move_row(source, target)
        self.target_cache.move_row(source, target)
        if self.speculate:
            self.draft_cache.move_row(source, target)

    def _run(self, name: str, phase: Callable[[int], None], count: int, graph_size: int | None) -> None:
        if name == "draft" and self.config.steps == 1:
            return
        if graph_size is None:
            phase(count)
        else:
            self.graphs.replay(name, graph_size)

    # What follows is captured: static shapes, no read-back, nothing made on the host.

    def _draft(self, count: int) -> None:
        state, cache = self.state, self.draft_cache.rows(0, count)
        hidden = state.draft_hidden[:count, None]
        for step in range(1, self.config.steps):
            # The draft's cache holds as many entries as the target's; each step ahead adds one, which draft_extend writes over.
            lengths = state.lengths[:count] + (step - 1)
            proposed, hidden = self.draft_model(state.drafts[:count, step - 1 : step], hidden, lengths, cache)
            state.drafts[:count, step : step + 1].copy_(proposed)

    def _verify(self, count: int) -> None:
        state = self.state
        tokens = torch.cat((state.last_token[:count, None], state.drafts[:count]), dim=1)
        verified, features = self.target(tokens, state.lengths[:count], self.target_cache.rows(0, count))
        state.features[:count].copy_(features)
        state.verified[:count].copy_(verified)
        accepted = accepted_drafts(state.drafts[:count], verified)
        state.outcome[:count].copy_(torch.cat((accepted[:, None], verified), dim=1))

    def _draft_extend(self, count: int) -> None:
        state = self.state
        accepted = state.accepted[:count, None]
        # All steps + 1 places, so that the shape never depends on what was accepted: places behind the accepted ones look
        # at nothing that comes later, nobody reads them, and the next cycle writes over their cache entries.
        proposed, hidden = self.draft_model(
            state.verified[:count],
            state.features[:count],
            state.lengths[:count],
            self.draft_cache.rows(0, count),
            accepted,
        )
        state.draft_hidden[:count].copy_(hidden[:, 0])
        state.drafts[:count, :1].copy_(proposed)
        state.last_token[:count].copy_(state.verified[:count].gather(1, accepted)[:, 0])
        state.advance(count, accepted[:, 0] + 1)

    def _decode(self, count: int) -> None:
        state = self.state
        tokens, _ = self.target(state.last_token[:count, None], state.lengths[:count], self.target_cache.rows(0, count))
        state.last_token[:count].copy_(tokens[:, 0])
        state.advance(count, torch.ones_like(state.lengths[:count]))
