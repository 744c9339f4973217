"""The picture: right answers by the place of the page that answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rag_middle.demo.demonstration import Demonstration
from rag_middle.demo.wording import in_percent
from rag_middle.evaluation.plots import legend_columns, new_figure, style_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_curves"]

_HEIGHT = 4.1  # inches
_APART = 0.16  # of a place, between the bars of two methods
_GREY = "#666666"


def draw_curves(shown: Demonstration) -> Figure:
    """A line per method with an interval at each place.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    drawn, [axes] = new_figure(height=_HEIGHT)
    curves = shown.curves
    places = [at + 1 for at in curves.places]
    middle = (len(curves.curves) - 1) / 2
    for index, curve in enumerate(curves.curves):
        style: dict[str, Any] = style_of(index)
        errors = [
            [100 * (each.value - each.low) for each in curve.estimates],
            [100 * (each.high - each.value) for each in curve.estimates],
        ]
        axes.errorbar(
            # Beside each other, so that one interval does not hide another.
            [place + (index - middle) * _APART for place in places],
            [100 * each.value for each in curve.estimates],
            yerr=errors,
            label=f"{curve.label}: mean {in_percent(curve.mean.value)}",
            markersize=4.5,
            linewidth=1.7,
            elinewidth=0.9,
            capsize=2,
            **style,
        )
    axes.axhline(
        100 * shown.chance,
        color=_GREY,
        linewidth=0.9,
        linestyle=":",
        label=f"a page at random: {in_percent(shown.chance)}",
    )
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    axes.set_xticks(places)
    axes.set_ylim(0, 102)
    axes.set_xlabel(f"Place of the page that answers, of {curves.documents}")
    axes.set_ylabel("Right answers, %")
    axes.set_title(
        f"{curves.questions} questions, each at {len(places)} places; bars: 95 % intervals",
        fontsize=9,
    )
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(  # below, where no curve can be; lines come before error bars, chance goes last
        [*handles[1:], handles[0]],
        [*labels[1:], labels[0]],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.17),
        ncols=legend_columns([*labels[1:], labels[0]], 2),
        fontsize=8.5,
        frameon=False,
    )
    return drawn
