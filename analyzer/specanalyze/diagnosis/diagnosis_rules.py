"""All diagnosis rules, in one table."""

from __future__ import annotations

from typing import Final

from specanalyze.diagnosis import (
    diagnosis_rules_context,
    diagnosis_rules_device,
    diagnosis_rules_draft,
    diagnosis_rules_host,
    diagnosis_rules_ranks,
    diagnosis_rules_uneven,
)
from specanalyze.diagnosis.diagnosis_rule import Rule

RULES: Final[tuple[Rule, ...]] = (
    *diagnosis_rules_device.RULES,
    *diagnosis_rules_context.RULES,
    *diagnosis_rules_host.RULES,
    *diagnosis_rules_draft.RULES,
    *diagnosis_rules_ranks.RULES,
    *diagnosis_rules_uneven.RULES,
)
"""Each rule names a fault that one recording can show."""
