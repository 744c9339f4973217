"""Charts. Needs matplotlib (extra ``eval``); nothing is drawn on a screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

from rag_middle.errors import MissingExtraError
from rag_middle.evaluation.results import PositionCurves

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "draw_cost",
    "draw_gaps",
    "draw_position_curves",
    "legend_columns",
    "new_figure",
    "plot_cost",
    "plot_gaps",
    "plot_overview",
    "plot_position_curves",
    "style_of",
]

# Okabe and Ito's colours, which the colour-blind can tell apart; the unmodified model is black.
_COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
_MARKERS = "osD^vP*X"
# Inches: narrow enough to be read when a phone shows it 360 pixels wide.
WIDTH, HEIGHT = 4.8, 3.9
_GRID = "#DDDDDD"
_LEGEND, _HANDLE = 60, 6  # characters: of all columns, and of a line's sample
_APART = 0.013  # of the width, between two methods at one place


def new_figure(panels: int = 1, height: float = HEIGHT) -> tuple[Figure, list[Any]]:
    """A figure with axes below each other, without pyplot and its global state.

    Args:
        panels: how many axes.
        height: of each, in inches.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingExtraError("The chart", package="matplotlib", extra="eval") from error
    drawn = Figure(figsize=(WIDTH, height * panels), layout="constrained")
    every = drawn.subplots(panels, 1, squeeze=False)[:, 0]
    for axes in every:
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
    return drawn, list(every)


def plot_position_curves(curves: PositionCurves, *, title: str | None = None) -> Figure:
    """A line per method over the gold document's place, with bars for the intervals.

    Args:
        curves: from `accuracy_by_position`, or `Results.curves`.
        title: above the chart; by default the number of questions and documents.

    Returns:
        A matplotlib figure; ``savefig`` writes it.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    drawn, [axes] = new_figure()
    draw_position_curves(axes, curves, title=title)
    return drawn


def plot_gaps(curves: PositionCurves) -> Figure:
    """A bar per method for the gap between best and worst place, with its interval.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    drawn, [axes] = new_figure(height=_bars_height(curves))
    draw_gaps(axes, curves)
    return drawn


def plot_cost(curves: PositionCurves, ratios: Mapping[str, float | None]) -> Figure:
    """A point per method: score at the worst place over time of an answer.

    Args:
        curves: of the methods.
        ratios: time of an answer to the unmodified model's, by label.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    drawn, [axes] = new_figure()
    draw_cost(axes, curves, ratios)
    return drawn


def plot_overview(curves: PositionCurves, ratios: Mapping[str, float | None]) -> Figure:
    """All three charts below each other.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    with_cost = any(ratio is not None for ratio in ratios.values())
    drawn, every = new_figure(panels=3 if with_cost else 2)
    draw_position_curves(every[0], curves)
    draw_gaps(every[1], curves)
    if with_cost:
        draw_cost(every[2], curves, ratios)
    return drawn


def draw_position_curves(axes: Any, curves: PositionCurves, *, title: str | None = None) -> None:
    """`plot_position_curves`, into given axes."""
    scale = _scale(curves)
    places = [at + 1 for at in curves.places]
    apart = _APART * (places[-1] - places[0])
    middle = (len(curves.curves) - 1) / 2
    for index, curve in enumerate(curves.curves):
        errors = [
            [scale * (each.value - each.low) for each in curve.estimates],
            [scale * (each.high - each.value) for each in curve.estimates],
        ]
        axes.errorbar(
            # Beside each other: methods may have the same scores, and none must hide another.
            [place + (index - middle) * apart for place in places],
            [scale * each.value for each in curve.estimates],
            yerr=errors,
            label=curve.label,
            markersize=4.5,
            linewidth=1.6,
            elinewidth=0.9,
            capsize=2,
            **style_of(index),
        )
    axes.grid(axis="y", color=_GRID, linewidth=0.6)
    axes.set_xticks(places)
    axes.set_xlabel(f"Place of the document with the answer, of {curves.documents}")
    axes.set_ylabel(_with_unit(curves))
    if curves.metric.share:
        axes.set_ylim(-2, 102)
    axes.set_title(
        title
        or f"{curves.questions} questions, {curves.documents} documents; bars: 95 % intervals",
        fontsize=10,
    )
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.2),
        ncols=legend_columns([curve.label for curve in curves.curves], 3),
        fontsize=8.5,
        frameon=False,
    )


def draw_gaps(axes: Any, curves: PositionCurves) -> None:
    """`plot_gaps`, into given axes."""
    scale = _scale(curves)
    for index, curve in enumerate(curves.curves):
        gap = curve.gap
        axes.barh(index, scale * gap.value, color=style_of(index)["color"], alpha=0.75, height=0.62)
        low, high = scale * (gap.value - gap.low), scale * (gap.high - gap.value)
        axes.errorbar(
            scale * gap.value,
            index,
            xerr=[[low], [high]],
            color="#555555",
            linewidth=1.1,
            capsize=3,
        )
    axes.axvline(0, color="#555555", linewidth=0.9)
    axes.grid(axis="x", color=_GRID, linewidth=0.6)
    axes.set_yticks(range(len(curves.curves)), [_short(curve.label) for curve in curves.curves])
    axes.invert_yaxis()
    unit = "points" if curves.metric.share else "nats"
    axes.set_xlabel(f"Best place minus worst, {unit}")
    axes.set_title("Gap between places; crossing 0: may be chance", fontsize=10)


def draw_cost(axes: Any, curves: PositionCurves, ratios: Mapping[str, float | None]) -> None:
    """`plot_cost`, into given axes."""
    scale = _scale(curves)
    for index, curve in enumerate(curves.curves):
        ratio = ratios.get(curve.label)
        if ratio is None:
            continue
        worst = curve.worst
        style = style_of(index)
        axes.errorbar(
            ratio,
            scale * worst.value,
            yerr=[[scale * (worst.value - worst.low)], [scale * (worst.high - worst.value)]],
            color=style["color"],
            marker=style["marker"],
            markersize=6,
            linewidth=1,
            linestyle="none",
            label=curve.label,
        )
    axes.grid(color=_GRID, linewidth=0.6)
    axes.set_xlabel("Time of an answer (unmodified model: 1)")
    axes.set_ylabel("Worst place" + (", %" if curves.metric.share else ""))
    axes.margins(x=0.12)
    if curves.metric.share:
        axes.set_ylim(-2, 102)
    axes.set_title("What the worst place costs", fontsize=10)
    # A legend and no labels at the points: points may lie on each other, labels must not.
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.2),
        ncols=legend_columns([curve.label for curve in curves.curves], 3),
        fontsize=8.5,
        frameon=False,
    )


def legend_columns(labels: Sequence[str], most: int) -> int:
    """Columns of a legend that is no wider than the chart, which would become narrow beside it."""
    for columns in range(min(most, len(labels)), 1, -1):
        rows = ceil(len(labels) / columns)
        longest = [max(map(len, labels[at : at + rows])) for at in range(0, len(labels), rows)]
        if sum(longest) + _HANDLE * len(longest) <= _LEGEND:
            return columns
    return 1


def style_of(index: int) -> dict[str, Any]:
    """Colour, marker and line of the method at `index`, 0 being the unmodified model."""
    return {
        "color": _COLOURS[index % len(_COLOURS)],
        "marker": _MARKERS[index % len(_MARKERS)],
        "linestyle": "-" if index < len(_COLOURS) else "--",
    }


def _scale(curves: PositionCurves) -> float:
    return 100.0 if curves.metric.share else 1.0


def _with_unit(curves: PositionCurves) -> str:
    return f"{curves.metric.title}, %" if curves.metric.share else curves.metric.title


def _short(label: str) -> str:
    return label.replace("_", "_\n", 1) if len(label) > 14 else label


def _bars_height(curves: PositionCurves) -> float:
    return 1.3 + 0.38 * len(curves.curves)
