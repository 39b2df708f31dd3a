"""Whether the recorded accept lengths add up to what the server says it generated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from speccollect.cycles.rows import COMMITTING_MODES

TOTAL_COLUMNS: Final = (
    "kind",
    "rank",
    "cycle",
    "mode",
    "request_ids",
    "accept_lengths",
    "accepted_draft_tokens",
    "prompt_tokens",
    "completion_tokens",
)
"""Columns of the event table that the check reads."""


def _by_request(rows: pa.Table, column: str) -> dict[str, int]:
    """Request id -> sum of its element of a list column, over the rows where both lists have one length."""
    ids, values = rows["request_ids"].combine_chunks(), rows[column].combine_chunks()
    same = pc.equal(pc.list_value_length(ids), pc.list_value_length(values))
    ids, values = ids.filter(same), values.filter(same)
    flat = pa.table({"id": ids.flatten(), "tokens": values.flatten()})
    sums = flat.group_by("id").aggregate([("tokens", "sum")])
    return {i: t or 0 for i, t in zip(sums["id"].to_pylist(), sums["tokens_sum"].to_pylist(), strict=True)}


def rank_totals(rows: pa.Table, completion_tokens: int | None = None) -> dict[str, Any]:
    """One rank's check.

    Args:
        rows: TOTAL_COLUMNS of the rank's ``cycle`` and ``request`` rows.
        completion_tokens: what the client was told, used where the server's hooks told of no request.

    Returns:
        ``committed_tokens``: sum of accept lengths over all cycles; ``cycles_without_lengths``: committing cycles whose
        lengths never reached the host (null elements count, too); ``first_tokens``: requests whose prefill was
        recorded, each of which gave one token of its own; ``completion_tokens`` as told (``told_by`` server or client),
        ``compared_requests``, ``difference`` (told minus recorded) and ``equal``, over the requests that were
        recorded from prefill to end. ``difference`` and ``equal`` are None where there is nothing to compare.
    """
    cycles = rows.filter(pc.equal(rows["kind"], "cycle"))
    mode = cycles["mode"].cast(pa.string())
    commits = cycles.filter(pc.is_in(mode, pa.array(COMMITTING_MODES)))
    known = commits.filter(pc.is_valid(commits["accept_lengths"]))
    lengths = known["accept_lengths"].combine_chunks().flatten()
    unknown = commits.num_rows - known.num_rows + _cycles_with_nulls(known)

    prefills = cycles.filter(pc.equal(mode, "prefill"))
    prefilled = set(prefills["request_ids"].combine_chunks().flatten().to_pylist())
    first = dict.fromkeys(prefilled, 1)
    first.update(_prefilled_beside_verify(cycles.filter(pc.equal(mode, "mixed"))))
    # an engine may count the token that prefill itself gives among that cycle's accept lengths
    first.update(_by_request(prefills.filter(pc.is_valid(prefills["accept_lengths"])), "accept_lengths"))

    committed = _by_request(known, "accept_lengths")
    finished = rows.filter(pc.and_(pc.equal(rows["kind"], "request"), pc.is_valid(rows["completion_tokens"])))
    told = {
        ids[0]: tokens
        for ids, tokens in zip(
            finished["request_ids"].to_pylist(), finished["completion_tokens"].to_pylist(), strict=True
        )
        if ids
    }
    total = int(pc.sum(lengths).as_py() or 0)
    result: dict[str, Any] = {
        "committed_tokens": total,
        "cycles_without_lengths": unknown,
        "first_tokens": sum(first.values()),
        "completion_tokens": None,
        "told_by": None,
        "compared_requests": 0,
        "difference": None,
        "equal": None,
    }
    compared = [request for request in told if request in first]
    if compared:
        recorded = sum(committed.get(r, 0) + first[r] for r in compared)
        said = sum(told[r] for r in compared)
        result.update(completion_tokens=said, told_by="server", compared_requests=len(compared))
        result.update(difference=said - recorded, equal=said == recorded)
    elif completion_tokens is not None:
        recorded = total + sum(first.values())
        result.update(completion_tokens=completion_tokens, told_by="client", compared_requests=len(first))
        result.update(difference=completion_tokens - recorded, equal=completion_tokens == recorded)
    return result


def all_totals(of_rank: Mapping[int, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """``rank_totals`` of all ranks, by number as text.

    Tokens may reach the host on one rank alone (vLLM's, which the scheduler listens to): where it heard of them, the others
    have nothing to compare with what the client was told.
    """
    heard = any(totals["committed_tokens"] for totals in of_rank.values())
    nothing = {"completion_tokens": None, "told_by": None, "compared_requests": 0, "difference": None, "equal": None}
    return {
        str(rank): totals | nothing
        if heard and totals["told_by"] == "client" and not totals["committed_tokens"]
        else totals
        for rank, totals in of_rank.items()
    }


def _prefilled_beside_verify(mixed: pa.Table) -> dict[str, int]:
    """Requests that mixed steps prefilled -> their first token, or 0 where the step's accept lengths hold it already.

    A request with accepted drafts was verified; where an engine tells of none, any request may have been prefilled.
    """
    first: dict[str, int] = {}
    columns = (mixed[name].to_pylist() for name in ("request_ids", "accept_lengths", "accepted_draft_tokens"))
    for requests, lengths, accepted in zip(*columns, strict=True):
        for place, request in enumerate(requests or ()):
            if accepted is None or accepted[place] is None:
                told = lengths is not None and lengths[place] is not None
                first[request] = 0 if told else first.get(request, 1)
    return first


def _cycles_with_nulls(known: pa.Table) -> int:
    """Cycles one of whose elements is null."""
    lists = known["accept_lengths"].combine_chunks()
    parents: Sequence[int] = pc.list_parent_indices(lists).filter(pc.is_null(lists.flatten())).to_numpy()
    return len(np.unique(parents))
