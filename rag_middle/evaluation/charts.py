"""Charts of the HTML reports, as Vega-Lite specifications.

Vega-Lite draws them in the page, with values under the pointer; vl-convert brings its JavaScript as
part of a Python package (extra ``eval``), so that a report loads nothing from anywhere. Text, axes
and the unmodified model are drawn in ``currentColor``, the page's own, in light and dark alike.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from textwrap import fill
from typing import Any

from rag_middle.errors import EvaluationConfigError
from rag_middle.evaluation.grid import HeatMaps
from rag_middle.evaluation.plots import COLOURS, printable
from rag_middle.evaluation.results import PositionCurves
from rag_middle.evaluation.statistics import Estimate
from rag_middle.extras import require

__all__ = [
    "Chart",
    "chart_library",
    "cost_chart",
    "gap_chart",
    "heat_map_charts",
    "line_chart",
    "position_chart",
    "require_library",
    "scatter_chart",
]

_VEGA_LITE = "6.1"
_STATIC_WIDTH = 640  # pixels; pages scale it
_ROW_NAME_WIDTH = 14  # characters of a line beside a heat map
_OFFSET = 0.012  # of the width, between two methods at one position
_LONG_LABEL = 22  # characters; longer ones leave room for one column of a legend only
_INK = "currentColor"
_CONFIG: Mapping[str, Any] = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": _INK,
        "titleColor": _INK,
        "domainColor": _INK,
        "tickColor": _INK,
        "gridColor": "#88888844",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
    "legend": {
        "labelColor": _INK,
        "orient": "bottom",
        "title": None,
        "labelFontSize": 12,
        "labelLimit": 320,
        "symbolStrokeWidth": 2,
    },
}


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart.

    Attributes:
        title: above it.
        spec: in Vega-Lite; its width is that of what holds it.
    """

    title: str
    spec: Mapping[str, Any]

    @property
    def svg(self) -> str:
        """Without interaction, for where no script runs."""
        spec = copy.deepcopy(dict(self.spec))
        spec["width"] = _STATIC_WIDTH
        try:
            return str(require_library().vegalite_to_svg(spec, vl_version=_VEGA_LITE))
        except ValueError as error:
            raise EvaluationConfigError(
                f"The chart {self.title!r} cannot be drawn ({str(error).strip()[:200]}). Give the "
                "methods labels of plain letters; records and earlier reports are as they were."
            ) from error


@cache
def chart_library() -> str:
    """Vega, Vega-Lite and vega-embed (BSD licence) as one script.

    Raises:
        MissingExtraError: vl-convert is not installed.
    """
    script = require_library().javascript_bundle(
        snippet="window.vegaEmbed = vegaEmbed;", vl_version=_VEGA_LITE
    )
    return str(script).replace("</script", "<\\/script")


def require_library() -> Any:
    """The package vl-convert.

    Raises:
        MissingExtraError: it is not installed.
    """
    return require("vl_convert", package="vl-convert-python", what="The HTML report", extra="eval")


def position_chart(curves: PositionCurves) -> Chart:
    """A line per method over the gold document's position, with intervals."""
    return line_chart(
        f"{curves.metric.title} by the position of the gold document",
        {_value(curve.label): curve.estimates for curve in curves.curves},
        curves.positions,
        share=curves.metric.share,
        unit=curves.metric.title,
    )


def line_chart(
    title: str,
    lines: Mapping[str, Sequence[Estimate]],
    positions: Sequence[int],
    *,
    share: bool,
    unit: str,
) -> Chart:
    """Lines over positions.

    Args:
        lines: estimates at the positions, by label.
        positions: 0-based.
        share: values are shown in per cent.
    """
    step = _OFFSET * (positions[-1] - positions[0])
    rows = []
    for index, (label, estimates) in enumerate(lines.items()):
        for at, estimate in zip(positions, estimates, strict=True):
            # Beside each other: methods may have the same scores, and none must hide another.
            x = at + (index - (len(lines) - 1) / 2) * step
            rows.append({"method": label, "position": at, "x": x, **_values(estimate, share)})
    axis = _number(
        "x",
        title="Position of the gold document",
        axis={"values": list(positions), "grid": False, "format": "d"},
        scale={"nice": False, "padding": 16},
    )
    tooltip = _tooltip(method="method", position="position", shown=unit)
    spec = {
        "height": 300,
        "data": {"values": rows},
        "encoding": {"x": axis, "color": _colours(list(lines)), "opacity": _PICKED},
        "layer": [
            _intervals(share, unit),
            {
                "params": [_PICK],
                "mark": {"type": "line", "strokeWidth": 2},
                "encoding": {"y": _number("value")},
            },
            _points(70, list(lines), tooltip),
            {  # a larger target for pointers and fingers
                "mark": {"type": "point", "filled": True, "size": 500, "opacity": 0},
                "encoding": {
                    "y": _number("value"),
                    "opacity": {"value": 0},
                    "tooltip": tooltip,
                },
            },
        ],
    }
    return Chart(title, _complete(spec))


def heat_map_charts(maps: HeatMaps) -> list[Chart]:
    """A heat map per method."""
    share, unit = maps.metric.share, maps.metric.title
    low, dark, high = maps.colour_scale
    charts = []
    for label in maps.labels:
        cells = [
            {
                "row": row.name,
                "lines": fill(row.name, _ROW_NAME_WIDTH),
                # Each row has columns of its own, spread over the width of all.
                "left": column / len(row.columns),
                "middle": (column + 0.5) / len(row.columns),
                "right": (column + 1) / len(row.columns),
                "column": row.columns[column],
                "number": estimate.text(share=share, digits=0 if share else 2).split(" ")[0],
                **_values(estimate, share),
            }
            for row in maps.rows
            for column, estimate in enumerate(row.estimates[label])
        ]
        white = {"test": f"datum.value > {dark}", "value": "white"}
        axis = {
            "title": maps.column_title,
            "scale": {"domain": [0, 1], "nice": False},
            "axis": {"labels": False, "ticks": False, "grid": False},
        }
        spec = {
            "height": 44 * len(maps.rows),
            "data": {"values": cells},
            "encoding": {
                "y": {
                    "field": "lines",
                    "type": "ordinal",
                    "title": maps.row_title,
                    "sort": [fill(row.name, _ROW_NAME_WIDTH) for row in maps.rows],
                    "axis": {"labelExpr": "split(datum.label, '\\n')"},
                },
                "tooltip": _tooltip(row=maps.row_title, column=maps.column_title, shown=unit),
            },
            "layer": [
                {
                    "mark": "rect",
                    "encoding": {
                        "x": _number("left", **axis),
                        "x2": {"field": "right"},
                        "color": _number(
                            "value", scale={"scheme": "blues", "domain": [low, high]}, legend=None
                        ),
                    },
                },
                *(
                    {
                        "mark": {"type": "text", "fontSize": size, "dy": dy},
                        "encoding": {
                            "x": _number("middle", **axis),
                            "text": {"field": field},
                            "color": {"condition": white, "value": "black"},
                        },
                    }
                    for field, size, dy in (("number", 12, -7), ("column", 10, 8))
                ),
            ],
        }
        charts.append(
            Chart(
                f"{printable(label)}: {unit}{', %' if share else ''}, {maps.about}",
                _complete(spec),
            )
        )
    return charts


def gap_chart(curves: PositionCurves) -> Chart:
    """A bar per method for the gap between best and worst position, with its interval."""
    share, labels = curves.metric.share, [_value(label) for label in curves.labels]
    rows = [
        {"method": _value(curve.label), **_values(curve.gap, share, signed=True)}
        for curve in curves.curves
    ]
    unit = "points" if share else curves.metric.unit
    x = {"title": f"Best position minus worst, {unit}", "axis": {"tickCount": 6}}
    y = {
        "field": "method",
        "type": "nominal",
        "sort": labels,
        "title": None,
        "axis": {"labelLimit": 150},
    }
    tooltip = _tooltip(method="method", shown="gap")
    spec = {
        "height": 30 * len(rows),
        "data": {"values": rows},
        "encoding": {"y": y},
        "layer": [
            {
                "mark": {"type": "bar", "height": 16, "opacity": 0.5},
                "encoding": {
                    "x": _number("value", **x),
                    "color": {**_colours(labels), "legend": None},
                    "tooltip": tooltip,
                },
            },
            {
                "mark": {"type": "rule", "strokeWidth": 1.5, "color": _INK},
                "encoding": {
                    "x": _number("low", **x),
                    "x2": {"field": "high"},
                    "tooltip": tooltip,
                },
            },
        ],
    }
    return Chart(
        "Gap between positions; not significant where the interval reaches 0", _complete(spec)
    )


def cost_chart(curves: PositionCurves, answer_time_ratios: Mapping[str, float]) -> Chart:
    """A point per method: score at the worst position over time of an answer."""
    share = curves.metric.share
    rows = [
        {
            "method": _value(curve.label),
            "time": answer_time_ratios[curve.label],
            "took": f"×{answer_time_ratios[curve.label]:.2f}",
            **_values(curve.worst, share),
        }
        for curve in curves.curves
        if curve.label in answer_time_ratios
    ]
    labels = [row["method"] for row in rows]
    x = _number(
        "time",
        title="Time of an answer (unmodified model: 1)",
        axis={"tickCount": 6},
        scale={"zero": False, "padding": 24},
    )
    tooltip = _tooltip(method="method", took="time of an answer", shown="worst position")
    spec = {
        "height": 280,
        "data": {"values": rows},
        "encoding": {"x": x, "color": _colours(labels), "opacity": _PICKED},
        "layer": [
            _intervals(share, "Worst position"),
            {"params": [_PICK], **_points(110, labels, tooltip)},
        ],
    }
    return Chart("Score at the worst position, and time of an answer", _complete(spec))


def scatter_chart(
    title: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    x: str,
    y: str,
    line: str,
    tooltip: Sequence[str],
) -> Chart:
    """Points, and a line through another field of the same rows.

    Args:
        x: field of the horizontal axis, and its title.
        y: field of the points, and the title of the vertical axis.
        line: field of the line.
        tooltip: fields to show under the pointer.
    """
    vertical = {"title": y, "scale": {"zero": False}}
    spec = {
        "height": 240,
        "data": {"values": list(rows)},
        "encoding": {"x": _number(x, title=x)},
        "layer": [
            {
                "mark": {"type": "line", "interpolate": "step-after", "color": COLOURS[1]},
                "encoding": {"y": _number(line, **vertical)},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 35, "color": COLOURS[2]},
                "encoding": {
                    "y": _number(y, **vertical),
                    "tooltip": _tooltip(**{name: name for name in tooltip}),
                },
            },
        ],
    }
    return Chart(title, _complete(spec))


#: Clicking a method in the legend dims the others.
_PICK = {
    "name": "picked",
    "select": {"type": "point", "fields": ["method"]},
    "bind": "legend",
}
_PICKED = {"condition": {"param": "picked", "value": 1}, "value": 0.12}


def _complete(spec: Mapping[str, Any]) -> dict[str, Any]:
    schema = "https://vega.github.io/schema/vega-lite/v6.json"
    return {"$schema": schema, "width": "container", **spec, "config": _CONFIG}


def _colours(labels: Sequence[str]) -> dict[str, Any]:
    colours = [COLOURS[index % len(COLOURS)] for index in range(len(labels))]
    if colours:
        colours[0] = _INK  # the unmodified model
    long = any(len(label) > _LONG_LABEL for label in labels)
    return {
        "field": "method",
        "type": "nominal",
        "scale": {"domain": list(labels), "range": colours},
        "legend": {"columns": 1 if long else 3},
    }


def _value(label: str) -> str:
    """A label as a value that Vega takes, and shows alike.

    Values become keys of JavaScript objects, which have some: ``constructor``. None ends in a
    space. Control characters and Unicode's line ends make vl-convert fail, or end the process.
    """
    return printable(label) + " "


def _number(field: str, **more: Any) -> dict[str, Any]:
    """An encoding of numbers."""
    return {"field": field, "type": "quantitative", **more}


def _tooltip(**titles: str) -> list[dict[str, str]]:
    return [{"field": field, "title": title} for field, title in titles.items()]


def _intervals(share: bool, unit: str) -> dict[str, Any]:
    """A layer of vertical lines from ``low`` to ``high``, and what is measured at the axis."""
    y = _number(
        "low",
        title=f"{unit}, %" if share else unit,
        scale={"domain": [0, 100]} if share else {"zero": False},
    )
    mark = {"type": "rule", "strokeWidth": 1.2}
    return {"mark": mark, "encoding": {"y": y, "y2": {"field": "high"}}}


def _points(size: int, labels: Sequence[str], tooltip: Sequence[Any]) -> dict[str, Any]:
    """A layer of points, of another shape for each method."""
    return {
        "mark": {"type": "point", "filled": True, "size": size},
        "encoding": {
            "y": _number("value"),
            "shape": {"field": "method", "sort": labels, "legend": None},
            "tooltip": tooltip,
        },
    }


def _values(estimate: Estimate, share: bool, *, signed: bool = False) -> dict[str, Any]:
    scale = 100 if share else 1
    return {
        "value": scale * estimate.value,
        "low": scale * estimate.low,
        "high": scale * estimate.high,
        "shown": estimate.text(share=share, signed=signed),
    }
