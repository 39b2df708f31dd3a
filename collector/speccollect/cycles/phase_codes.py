"""Numbers of the phases and modes that are known beforehand: the same in every recording."""

from __future__ import annotations

from typing import Final

from specschema.phases import CYCLE_MODES, LEAF_PHASES, SUB_PHASES

KNOWN_NAMES: Final = tuple(dict.fromkeys((*LEAF_PHASES, *SUB_PHASES, *CYCLE_MODES)))

CODES: Final = {name: code for code, name in enumerate(KNOWN_NAMES)}
"""Name -> place in KNOWN_NAMES, with which a recording's list of names begins."""
