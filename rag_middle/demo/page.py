"""The page: one HTML file that loads nothing, beside the picture and the data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rag_middle.demo.demonstration import Demonstration
from rag_middle.demo.examples import ORDERS
from rag_middle.demo.wording import findings, how_measured, in_percent, in_print
from rag_middle.evaluation.pages import estimate_cell, render
from rag_middle.evaluation.plots import data_uri, draw_curves, draw_legend, image, new_figure
from rag_middle.files import write_files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["DemoFiles", "html_page", "plot_demonstration", "write_demonstration"]

_DPI = 200
_HEIGHT = 4.1  # inches
_OFFSET = 0.16  # positions, between the bars of two methods


@dataclass(frozen=True, slots=True)
class DemoFiles:
    """Where the demonstration's files are.

    Attributes:
        html: the page.
        png: the picture.
        json: everything as data.
    """

    html: Path
    png: Path
    json: Path


def write_demonstration(
    demonstration: Demonstration, folder: str | Path, *, command: str = ""
) -> DemoFiles:
    """Write ``demo.html``, ``demo.png`` and ``demo.json``.

    Args:
        demonstration: what to write.
        folder: made if it is not there.
        command: that repeats it, shown on the page.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputWriteError: the folder cannot be written to.
    """
    folder = Path(folder)
    files = DemoFiles(folder / "demo.html", folder / "demo.png", folder / "demo.json")
    texts = {"findings": findings(demonstration), "repeat": command}
    data = {**demonstration.to_dict(), **texts}
    write_files(
        folder,
        {
            files.png.name: image(plot_demonstration(demonstration), "png", dpi=_DPI),
            files.json.name: (json.dumps(data, indent=2, allow_nan=False) + "\n").encode(),
            files.html.name: html_page(demonstration, command=command).encode(),
        },
    )
    return files


def html_page(demonstration: Demonstration, *, command: str = "") -> str:
    """The page as a text.

    Args:
        demonstration: what it is about.
        command: that repeats it.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    return render(
        "demonstration.html.j2",
        package=__package__,
        demo=demonstration,
        curves=demonstration.curves,
        orders=ORDERS,
        findings=findings(demonstration),
        how_measured=how_measured(demonstration),
        chart=data_uri(plot_demonstration(demonstration)),
        command=command,
        in_percent=in_percent,
        in_print=in_print,
        cell=partial(estimate_cell, share=True, digits=0),
    )


def plot_demonstration(demonstration: Demonstration) -> Figure:
    """Accuracy by the position of the gold document: a line per method, and what chance gives.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure, [axes] = new_figure(height=_HEIGHT)
    curves, chance = demonstration.curves, demonstration.chance
    labels = [
        f"{in_print(curve.label)}: mean {in_percent(curve.mean.value)}" for curve in curves.curves
    ]
    draw_curves(axes, curves, offset=_OFFSET, labels=labels)
    random_page = axes.axhline(
        100 * chance,
        color="#666666",
        linewidth=0.9,
        linestyle=":",
        label=f"chance level: {in_percent(chance)}",
    )
    axes.set_ylim(0, 102)
    axes.set_ylabel("Accuracy, %")
    axes.set_title(
        f"{curves.questions} questions, each at {len(curves.positions)} positions; bars: 95 % "
        "intervals",
        fontsize=9,
    )
    draw_legend(axes, 2, random_page)
    return figure
