"""What all plots share: how a chart becomes a specification, how it looks, and the library that draws it.

Vega-Altair was chosen by size: its libraries are 0.9 MB inline, Plotly's only bundle on PyPI is 4.8 MB, and a page must stay
under 3 MB. Vega draws SVG, so colours can be CSS variables: dark mode and paper are a matter of style sheets.
"""

from __future__ import annotations

from typing import Any, Final

import altair as alt
import polars as pl
import vl_convert

MARGINS: Final = 16
_INK, _FAINT, _GRID = "var(--ink)", "var(--muted)", "var(--grid)"
_CONFIG: Final[dict[str, Any]] = {
    "background": None,
    "font": "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": _INK,
        "titleColor": _FAINT,
        "titleFontWeight": "normal",
        "gridColor": _GRID,
        "domainColor": _GRID,
        "tickColor": _GRID,
        "labelFontSize": 12,
        "titleFontSize": 12,
    },
    "axisQuantitative": {"tickCount": 10, "labelOverlap": True, "labelSeparation": 8},
    "legend": {
        "labelColor": _INK,
        "titleColor": _FAINT,
        "titleFontWeight": "normal",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "labelLimit": 320,
        "symbolType": "square",
    },
    "header": {"labelColor": _INK, "titleColor": _FAINT, "labelFontSize": 12},
    "text": {"color": _INK},
    "rule": {"color": _INK},
}


PERCENT_TICKS: Final = "format(100 * datum.value, '.0f') + ' %'"
"""``labelExpr`` of a scale of shares, written as ``figures.percent`` writes them."""
CHANGE_TICKS: Final = "format(100 * datum.value, '+.0f') + ' %'"
"""``labelExpr`` of a scale of changes, as ``figures.change``."""


def percent_text(column: str, sign: str = "") -> str:
    """Expression that makes a tooltip's text of a column of shares; ``sign="+"`` of changes."""
    return f"isValid(datum.{column}) ? format(100 * datum.{column}, '{sign}.1f') + ' %' : '–'"


def rows(frame: pl.DataFrame) -> alt.InlineData:
    """A table as the data of a chart; numbers that are not finite become null."""
    clean = frame.with_columns(
        pl.when(pl.col(c).is_finite()).then(pl.col(c).round(4)) for c, t in frame.schema.items() if t.is_float()
    )
    return alt.InlineData(values=clean.to_dicts())


def specification(chart: alt.Chart | alt.LayerChart) -> dict[str, Any]:
    """The Vega-Lite specification of a chart, in the page's style and as wide as its place."""
    spec: dict[str, Any] = chart.to_dict(validate=True)
    spec["width"] = "container"
    spec["config"] = _CONFIG
    return spec


def library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script that needs nothing else."""
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle.replace("</script", "<\\/script")
