"""Charts. Needs matplotlib (extra ``eval``); nothing is drawn on a screen."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from math import ceil
from textwrap import fill
from typing import TYPE_CHECKING, Any

from rag_middle.evaluation.factors import Factors
from rag_middle.evaluation.grid import Grid
from rag_middle.evaluation.results import PositionCurves
from rag_middle.evaluation.statistics import Estimate
from rag_middle.extras import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which the colour-blind can tell apart; the unmodified model is black.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
_MARKERS = "osD^vP*X"
# Inches: narrow enough to be read when a phone shows it 360 pixels wide.
WIDTH, HEIGHT = 4.8, 3.9
_GRID, _GREY = "#DDDDDD", "#555555"
_LEGEND_WIDTH, _HANDLE_WIDTH = 60, 6  # characters: of all columns, and of a line's sample
_ROW_NAME_WIDTH = 14  # characters of a line beside a heat map
_OFFSET = 0.013  # of the width, between two methods at one position


def new_figure(panels: int = 1, height: float = HEIGHT) -> tuple[Figure, list[Any]]:
    """A figure with axes below each other, without pyplot and its global state.

    Args:
        height: of each, in inches.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    library = require("matplotlib.figure", package="matplotlib", what="The chart", extra="eval")
    figure: Figure = library.Figure(figsize=(WIDTH, height * panels), layout="constrained")
    panel_axes = list(figure.subplots(panels, 1, squeeze=False)[:, 0])
    for axes in panel_axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
    return figure, panel_axes


def plot_position_curves(
    curves: PositionCurves, *, title: str | None = None, axes: Any = None
) -> Figure:
    """A line per method over the gold document's position, with bars for the intervals.

    Args:
        curves: from `Results.curves`.
        title: above the chart; by default the number of questions and documents.
        axes: to draw into; by default those of a new figure.

    Returns:
        A matplotlib figure; ``savefig`` writes it.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    axes = axes or new_figure()[1][0]
    lines = {curve.label: curve.estimates for curve in curves.curves}
    draw_lines(axes, lines, curves.positions, scale=_scale(curves))
    axes.set_xlabel(f"Position of the gold document (0 to {curves.documents - 1})")
    axes.set_ylabel(f"{curves.metric.title}, %" if curves.metric.share else curves.metric.title)
    counts = f"{curves.questions} questions, {curves.documents} documents"
    axes.set_title(title or f"{counts}; bars: 95 % intervals", fontsize=10)
    return axes.figure  # type: ignore[no-any-return]


def draw_lines(
    axes: Any,
    lines: Mapping[str, Sequence[Estimate]],
    positions: Sequence[int],
    *,
    scale: float = 100.0,
) -> None:
    """Draw a line over positions for each label, with its intervals and a legend.

    Args:
        axes: of a figure of matplotlib.
        lines: estimates at the positions, by label; the unmodified model's first.
        positions: 0-based.
        scale: of values; 100 for shares, whose axis shows all of them.
    """
    # Methods may have the same scores at a position, and none must hide another.
    offset = _OFFSET * (positions[-1] - positions[0])
    for index, (label, estimates) in enumerate(lines.items()):
        axes.errorbar(
            [position + (index - (len(lines) - 1) / 2) * offset for position in positions],
            [scale * estimate.value for estimate in estimates],
            yerr=_errors(estimates, scale),
            label=_literal(label),
            markersize=4.5,
            linewidth=1.6,
            elinewidth=0.9,
            capsize=2,
            linestyle="-" if index < len(COLOURS) else "--",
            **style(index),
        )
    axes.grid(axis="y", color=_GRID, linewidth=0.6)
    axes.set_xticks(list(positions))
    if scale == 100:
        axes.set_ylim(-2, 102)
    _draw_legend(axes)


def plot_gaps(curves: PositionCurves, *, axes: Any = None) -> Figure:
    """A bar per method for the gap between best and worst position, with its interval.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    axes = axes or new_figure(height=1.3 + 0.38 * len(curves.curves))[1][0]
    scale = _scale(curves)
    for index, curve in enumerate(curves.curves):
        gap = scale * curve.gap.value
        axes.barh(index, gap, color=style(index)["color"], alpha=0.75, height=0.62)
        errors = _errors([curve.gap], scale)
        axes.errorbar(gap, index, xerr=errors, color=_GREY, linewidth=1.1, capsize=3)
    axes.axvline(0, color=_GREY, linewidth=0.9)
    axes.grid(axis="x", color=_GRID, linewidth=0.6)
    names = [
        label.replace("_", "_\n", 1) if len(label) > 14 else label
        for label in map(_literal, curves.labels)
    ]
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel(
        f"Best position minus worst, {'points' if curves.metric.share else curves.metric.unit}"
    )
    axes.set_title("Gap between positions; crossing 0: not significant", fontsize=10)
    return axes.figure  # type: ignore[no-any-return]


def plot_cost(
    curves: PositionCurves, answer_time_ratios: Mapping[str, float], *, axes: Any = None
) -> Figure:
    """A point per method: score at the worst position over time of an answer.

    Args:
        curves: of the methods.
        answer_time_ratios: to the unmodified model's, by label.
        axes: to draw into; by default those of a new figure.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    axes = axes or new_figure()[1][0]
    scale = _scale(curves)
    for index, curve in enumerate(curves.curves):
        if curve.label in answer_time_ratios:
            axes.errorbar(
                answer_time_ratios[curve.label],
                scale * curve.worst.value,
                yerr=_errors([curve.worst], scale),
                markersize=6,
                linewidth=1,
                linestyle="none",
                label=_literal(curve.label),
                **style(index),
            )
    axes.grid(color=_GRID, linewidth=0.6)
    axes.set_xlabel("Time of an answer (unmodified model: 1)")
    axes.set_ylabel("Worst position" + (", %" if curves.metric.share else ""))
    axes.margins(x=0.12)
    if curves.metric.share:
        axes.set_ylim(-2, 102)
    axes.set_title("What the worst position costs", fontsize=10)
    # A legend and no labels at the points: points may lie on each other, labels must not.
    _draw_legend(axes)
    return axes.figure  # type: ignore[no-any-return]


def plot_grid(grid: Grid | Factors) -> Figure:
    """A heat map per method: by number of documents and position, or by a task's rows and columns.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    maps = grid.heat_maps
    figure, panels = new_figure(len(maps.labels), height=1.3 + 0.45 * len(maps.rows))
    share, scale = maps.metric.share, 100.0 if maps.metric.share else 1.0
    low, dark, high = maps.colour_scale
    for axes, label in zip(panels, maps.labels, strict=True):
        for index, row in enumerate(maps.rows):
            numbers = [scale * estimate.value for estimate in row.estimates[label]]
            # Each row has columns of its own, spread over the width of all.
            count = len(numbers)
            edges = [column / count for column in range(count + 1)]
            axes.pcolormesh(
                edges, [index - 0.5, index + 0.5], [numbers], vmin=low, vmax=high, cmap="Blues"
            )
            for column, number in enumerate(numbers):
                shown = f"{number:.0f}" if share else f"{number:.2f}"
                axes.text(
                    (column + 0.5) / count,
                    index,
                    f"{shown}\n{row.columns[column]}",
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="white" if number > dark else "black",
                )
        axes.set_xticks([])
        names = [fill(row.name, _ROW_NAME_WIDTH) for row in maps.rows]
        axes.set_yticks(range(len(names)), names)
        axes.set_ylabel(fill(maps.row_title, _ROW_NAME_WIDTH))
        axes.set_xlabel(maps.column_title)
        axes.set_title(
            _literal(f"{label}: {maps.metric.title}{', %' if share else ''}"), fontsize=10
        )
    return figure


def plot_overview(curves: PositionCurves, answer_time_ratios: Mapping[str, float]) -> Figure:
    """All three charts below each other.

    Args:
        answer_time_ratios: as for `plot_cost`; empty leaves that chart out.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure, panels = new_figure(panels=3 if answer_time_ratios else 2)
    plot_position_curves(curves, axes=panels[0])
    plot_gaps(curves, axes=panels[1])
    if answer_time_ratios:
        plot_cost(curves, answer_time_ratios, axes=panels[2])
    return figure


def _draw_legend(axes: Any) -> None:
    """A legend below the chart, where no curve can be."""
    _, labels = axes.get_legend_handles_labels()
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.2),
        ncols=legend_columns(labels, 3),
        fontsize=8.5,
        frameon=False,
    )


def legend_columns(labels: Sequence[str], most: int) -> int:
    """Columns of a legend that is no wider than the chart, which would become narrow beside it."""
    for columns in range(min(most, len(labels)), 1, -1):
        rows = ceil(len(labels) / columns)
        widths = [max(map(len, labels[i : i + rows])) for i in range(0, len(labels), rows)]
        if sum(widths) + _HANDLE_WIDTH * len(widths) <= _LEGEND_WIDTH:
            return columns
    return 1


def printable(label: str) -> str:
    """A label with spaces for characters that nothing shows and no drawing library takes."""
    return "".join(character if character.isprintable() else " " for character in label)


def image(figure: Figure, kind: str, dpi: int = 150) -> bytes:
    """The figure as ``png`` or ``svg``."""
    target = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {}
    figure.savefig(target, format=kind, dpi=dpi, metadata=metadata)
    return target.getvalue()


def _literal(label: str) -> str:
    """A label as it is: between two ``$`` is mathematics, and ``_`` first leaves the legend out."""
    return (" " if label.startswith("_") else "") + printable(label).replace("$", r"\$")


def style(index: int) -> dict[str, str]:
    """Colour and marker of the method at `index`, 0 being the unmodified model."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": _MARKERS[index % len(_MARKERS)],
    }


def _errors(estimates: Sequence[Estimate], scale: float) -> list[list[float]]:
    """Lengths of the bars below and above the values."""
    return [
        [scale * (estimate.value - estimate.low) for estimate in estimates],
        [scale * (estimate.high - estimate.value) for estimate in estimates],
    ]


def _scale(curves: PositionCurves) -> float:
    return 100.0 if curves.metric.share else 1.0
