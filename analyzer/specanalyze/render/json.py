"""JSON output: integers stay integers, numbers that do not exist are null."""

from __future__ import annotations

import json
import math
import sys
from typing import Any


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _clean(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def dumps(document: Any) -> str:
    """One JSON document, indented, non-finite numbers as null (JSON has no other word for them)."""
    return json.dumps(_clean(document), indent=1, ensure_ascii=not utf8(), allow_nan=False)


def utf8() -> bool:
    """Whether stdout takes every character."""
    return (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "") == "utf8"
