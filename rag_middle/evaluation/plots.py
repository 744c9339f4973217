"""Charts. Needs matplotlib (extra ``eval``); nothing is drawn on a screen."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

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
_GRID = "#DDDDDD"
_SHORT_LABEL = 24  # characters: two such labels fit beside each other
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


def plot_position_curves(curves: PositionCurves) -> Figure:
    """A line per method over the gold document's position, with bars for the intervals.

    Args:
        curves: from `Results.curves`.

    Returns:
        A matplotlib figure; ``savefig`` writes it.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    _, [axes] = new_figure()
    lines = {curve.label: curve.estimates for curve in curves.curves}
    draw_lines(axes, lines, curves.positions, scale=100.0 if curves.metric.share else 1.0)
    axes.set_xlabel(f"Position of the gold document (0 to {curves.documents - 1})")
    axes.set_ylabel(f"{curves.metric.title}, %" if curves.metric.share else curves.metric.title)
    counts = f"{curves.questions} questions, {curves.documents} documents"
    axes.set_title(f"{counts}; bars: 95 % intervals", fontsize=10)
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
        lines: estimates at the positions, by label; the unmodified model's first.
        positions: 0-based.
        scale: of values; 100 for shares, whose axis shows all of them.
    """
    # Methods may have the same scores at a position, and none must hide another.
    offset = _OFFSET * (positions[-1] - positions[0])
    for index, (label, estimates) in enumerate(lines.items()):
        axes.errorbar(
            np.array(positions) + (index - (len(lines) - 1) / 2) * offset,
            [scale * e.value for e in estimates],
            yerr=scale * np.array([(e.value - e.low, e.high - e.value) for e in estimates]).T,
            label=_literal(label),
            markersize=4.5,
            linewidth=1.6,
            elinewidth=0.9,
            capsize=2,
            linestyle="-" if index < len(COLOURS) else "--",
            color=COLOURS[index % len(COLOURS)],
            marker=_MARKERS[index % len(_MARKERS)],
        )
    axes.grid(axis="y", color=_GRID, linewidth=0.6)
    axes.set_xticks(list(positions))
    if scale == 100:
        axes.set_ylim(-2, 102)
    # Below the chart, where no curve can be, and no wider than the chart.
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.2),
        ncols=2 if max(map(len, lines)) <= _SHORT_LABEL else 1,
        fontsize=8.5,
        frameon=False,
    )


def image(figure: Figure, kind: str, dpi: int = 150) -> bytes:
    """The figure as ``png`` or ``svg``."""
    target = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {}
    figure.savefig(target, format=kind, dpi=dpi, metadata=metadata)
    return target.getvalue()


def _literal(label: str) -> str:
    """A label as it is: between two ``$`` is mathematics, and ``_`` first leaves the legend out.

    Spaces stand for characters that nothing shows and no drawing library takes.
    """
    shown = "".join(character if character.isprintable() else " " for character in label)
    return (" " if label.startswith("_") else "") + shown.replace("$", r"\$")
