"""Charts. Needs matplotlib (extra ``eval``); nothing is drawn on a screen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rag_middle.errors import MissingExtraError
from rag_middle.evaluation.results import PositionCurves

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "figure", "plot_position_curves"]

# Okabe and Ito's colours, which the colour-blind can tell apart; the unmodified model is black.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
_MARKERS = "osD^vP*X"
# Inches: narrow enough to be read when a phone shows it 360 pixels wide.
WIDTH, HEIGHT = 4.8, 3.6


def figure(height: float = HEIGHT) -> tuple[Figure, Any]:
    """A figure and its axes, without pyplot and its global state.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingExtraError("The chart", package="matplotlib", extra="eval") from error
    drawn = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = drawn.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    return drawn, axes


def plot_position_curves(curves: PositionCurves, *, title: str | None = None) -> Figure:
    """A line per method over the gold document's place, with bands for the intervals.

    Args:
        curves: from `accuracy_by_position`, or `Results.curves`.
        title: above the chart; by default the number of questions and documents.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    drawn, axes = figure()
    scale = 100 if curves.metric.share else 1
    places = [at + 1 for at in curves.places]
    for index, curve in enumerate(curves.curves):
        colour = COLOURS[index % len(COLOURS)]
        axes.fill_between(
            places,
            [scale * each.low for each in curve.estimates],
            [scale * each.high for each in curve.estimates],
            color=colour,
            alpha=0.13,
            linewidth=0,
        )
        axes.plot(
            places,
            [scale * each.value for each in curve.estimates],
            color=colour,
            marker=_MARKERS[index % len(_MARKERS)],
            markersize=4.5,
            linewidth=1.6,
            linestyle="-" if index < len(COLOURS) else "--",
            label=curve.label,
        )
    axes.set_xticks(places)
    axes.set_xlabel(f"Place of the document with the answer, of {curves.documents}")
    axes.set_ylabel(f"{curves.metric.title}, %" if curves.metric.share else curves.metric.title)
    if curves.metric.share:
        highest = max(each.high for curve in curves.curves for each in curve.estimates)
        axes.set_ylim(0, max(10, math.ceil(highest * 10 + 0.3) * 10) if highest < 0.97 else 103)
    axes.set_title(
        title or f"{curves.questions} questions, {curves.documents} documents", fontsize=10
    )
    legend_below(drawn, axes, len(curves.curves))
    return drawn


def legend_below(drawn: Figure, axes: Any, entries: int, names: Sequence[str] = ()) -> None:
    """A legend under the axes, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    drawn.legend(
        handles,
        list(names) or labels,
        loc="outside lower center",
        ncols=min(3, max(1, entries)),
        fontsize=9,
        frameon=False,
    )
