"""Acceptance patterns of a draft that is wired to its target the wrong way, each said with its figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from specanalyze.answers.environment import argument, variables
from specanalyze.whole_number import whole_number
from specschema.figures import counted, percent

ENOUGH_STEPS: Final = 20
"""Fewer verify steps than this prove nothing."""

HARDLY_ANY: Final = 1.15
"""Accept length at or below which a draft is close to useless; a working EAGLE-3 head reaches 1.6 and more at any length."""

FAR_BELOW: Final = 0.5
"""A first position accepted less than this share of the later positions: the later drafts are easier only by accident."""

COLLAPSE: Final = 0.2
"""A second position accepted less than this share of the first: drafts beyond the first see the wrong input."""

SIMULATION: Final = ("SGLANG_SIMULATE_ACC_LEN", "SGLANG_SIMULATE_ACC_METHOD")
METHOD: Final = "rejection_sample_method"
"""vLLM's argument (of its speculative_config) that can make acceptance up."""
"""Environment variables that make a server invent acceptance."""


def wiring_warnings(steps: pl.DataFrame, positions: pl.DataFrame, environment: Mapping[str, Any]) -> list[str]:
    """Patterns that acceptance of a rightly wired draft does not show.

    Args:
        steps: one row a (request, verify step) with accepted and committed.
        positions: of ``positions.acceptance_by_position``.
        environment: the recording's environment section.

    Returns:
        One line each: the pattern, its figures, what to check.
    """
    known = steps.get_column("accepted").drop_nulls()
    if steps.height < ENOUGH_STEPS:
        return []
    invented = simulated(known, environment)
    if invented is not None:
        return [invented]
    said = []
    length = steps.get_column("committed").mean()
    if isinstance(length, float) and length <= HARDLY_ANY:
        said.append(
            f"accept length {length:.2f} over {counted(steps.height, 'verify step')} is close to 1: hardly any draft is accepted. A draft "
            "wired wrongly looks like this: check that it was trained for this target, which hidden layers feed it, "
            "its vocabulary map and its positions"
        )
    rows = positions.filter(pl.col("reached") >= ENOUGH_STEPS).to_dicts()
    conditional = [row["conditional"] for row in rows]
    if len(conditional) > 1:
        first, later = conditional[0], conditional[1:]
        rest = sum(later) / len(later)
        if first < FAR_BELOW * rest:
            said.append(
                f"the first draft position is accepted {percent(first, 0)}, the later ones {percent(rest, 0)} once reached: a first "
                "draft that is worse than the ones built on it points to a wrong hidden state or token at the start of the draft"
            )
        elif conditional[1] < COLLAPSE * first:
            said.append(
                f"the first draft position is accepted {percent(first, 0)}, the second {percent(conditional[1], 0)} once reached: "
                "drafts beyond the first see wrong input (the draft's own hidden state, its KV cache, or positions)"
            )
    depth = argument(environment, "speculative_eagle_topk", "eagle_topk")
    if (whole_number(depth) or 0) > 1:
        said.append(f"the draft is a tree (top-k {depth}): positions are depths, and drafted tokens count all branches")
    return said


def simulated(accepted: pl.Series, environment: Mapping[str, Any]) -> str | None:
    """The line for acceptance that the server invents, told by its variable or argument, or by every step accepting the same."""
    recorded = variables(environment) or {}
    name = next((n for n in SIMULATION if recorded.get(n)), None)
    if name is not None:
        return (
            f"{name}={recorded[name]} is set: the server invents acceptance, the draft's own is not in this recording"
        )
    if argument(environment, f"speculative_config.{METHOD}", METHOD) == "synthetic":
        return f"{METHOD} is synthetic: the server invents acceptance, the draft's own is not in this recording"
    if len(accepted) >= 5 * ENOUGH_STEPS and accepted.n_unique() == 1 and accepted[0] > 0:
        return (
            f"each of {len(accepted)} verify steps accepted exactly {accepted[0]}: no real draft does; is acceptance simulated "
            "(SGLANG_SIMULATE_ACC_LEN; vLLM: rejection_sample_method)?"
        )
    return None
