"""A trace of the real vLLM engine with models that count, and what must hold of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
from counting_models import accept_lengths, accepted_drafts, counts_up

PROMPT = list(range(10))


def cycles(trace: Path, rank: int = 0) -> pl.DataFrame:
    events = pl.read_parquet(trace)
    return events.filter(pl.col("kind") == "cycle", pl.col("rank") == rank).sort("cycle")


def phases(trace: Path, rank: int = 0) -> pl.DataFrame:
    events = pl.read_parquet(trace)
    found = events.filter(pl.col("kind") == "phase", pl.col("rank") == rank).sort("start_ns", "dur_ns")
    return found.with_columns(name=pl.col("name").cast(pl.String).str.strip_prefix("spec."))


def lists(frame: pl.DataFrame, column: str, mode: str = "speculative") -> list[list[int]]:
    found: list[list[int]] = frame.filter(pl.col("mode") == mode)[column].to_list()
    return found


def totals(trace: Path, rank: int = 0) -> Any:
    metadata = pl.read_parquet_metadata(trace)
    return json.loads(metadata["specanalyze.recording"])["totals"][str(rank)]


def check_nesting(
    trace: Path, rank: int, leaves: tuple[str, ...], within_verify: tuple[str, ...] = ("target_forward", "sample")
) -> None:
    """Each speculative cycle holds its leaves once and in order, apart from each other; sub-phases lie in a leaf or cycle."""
    steps = cycles(trace, rank).filter(pl.col("mode") == "speculative")
    found = phases(trace, rank).filter(pl.col("cycle").is_in(steps["cycle"].implode()))
    parts = found.filter(pl.col("name").is_in(leaves)).with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns"))
    by_cycle = parts.group_by("cycle", maintain_order=True).agg(
        "name",
        first="start_ns",
        last=pl.col("end_ns"),
        apart=(pl.col("start_ns").shift(-1) >= pl.col("end_ns")).all(),
        total=pl.col("dur_ns").sum(),
    )
    joined = steps.select("cycle", "start_ns", "dur_ns").join(by_cycle, on="cycle", how="left")
    assert joined["name"].to_list() == [list(leaves)] * steps.height
    assert joined["apart"].all()
    assert (joined["first"].list.first() >= joined["start_ns"]).all()
    assert (joined["last"].list.last() <= joined["start_ns"] + joined["dur_ns"]).all()
    # what no leaf covers is bookkeeping, a small part
    assert (joined["total"] <= joined["dur_ns"]).all()
    assert 4 * int(joined["total"].sum()) > 3 * int(joined["dur_ns"].sum())
    inner = found.filter(pl.col("name").is_in(within_verify))
    verify = parts.filter(pl.col("name") == "verify").select("cycle", from_ns="start_ns", to_ns="end_ns")
    within = inner.join(verify, on="cycle")
    assert within.height == inner.height == len(within_verify) * steps.height
    assert (within["start_ns"] >= within["from_ns"]).all()
    assert (within["start_ns"] + within["dur_ns"] <= within["to_ns"]).all()


LEAVES = ("verify", "draft_extend", "draft")


def check_every_step(trace: Path, result: Any, within_verify: tuple[str, ...] = ("target_forward", "sample")) -> None:
    """200 tokens by three drafts a step: each step's accept length, and vLLM's own counters."""
    assert result["tokens"] == [counts_up(10, 200)]
    found = cycles(trace)
    lengths, accepted = accept_lengths(10, 3, 199), accepted_drafts(10, 3, 199)
    # prefill gives token 10, the steps the other 199
    assert lists(found, "accept_lengths", "prefill") == [[1]]
    assert lists(found, "accept_lengths") == [[n] for n in lengths]
    assert lists(found, "accepted_draft_tokens") == [[n] for n in accepted]
    assert found["draft_tokens"].to_list() == [0] + [3] * len(lengths)
    assert found["context_tokens"].to_list()[1:] == [11 + sum(lengths[:step]) for step in range(len(lengths))]
    check_nesting(trace, 0, LEAVES, within_verify)
    # vLLM's own counters count what the verifier accepted, before the last step is cut
    assert result["counters"] == {
        "vllm:spec_decode_num_drafts": len(accepted),
        "vllm:spec_decode_num_draft_tokens": 3 * len(accepted),
        "vllm:spec_decode_num_accepted_tokens": sum(accepted),
    }
    told = totals(trace)
    assert (told["told_by"], told["completion_tokens"], told["equal"]) == ("server", 200, True)


def check_asynchronous(trace: Path, result: Any, tokens: int) -> None:
    """Three drafts a step; the context is what the host had heard when the step was launched: one step less."""
    assert result["tokens"] == [counts_up(10, tokens)]
    steps = cycles(trace).filter(pl.col("mode") == "speculative")
    expected = accept_lengths(10, 3, tokens - 1)
    assert steps["accept_lengths"].to_list()[: len(expected)] == [[n] for n in expected]
    # launched before it was known that the request is over: nobody keeps its tokens
    assert steps["accept_lengths"].to_list()[len(expected) :] in ([], [None], [[None]])
    heard = [10, *(11 + sum(expected[:step]) for step in range(len(expected) - 1))]
    assert steps["context_tokens"].to_list()[: len(heard)] == heard
    assert totals(trace)["difference"] in (0, None)
