"""The picture, and the page: one HTML file that loads nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_middle.demo.demonstration import CHOSEN
from rag_middle.evaluation.plots import draw_lines, image, new_figure
from rag_middle.evaluation.report import data_url, render
from rag_middle.evaluation.statistics import Estimate
from rag_middle.files import write_files
from rag_middle.methods import METHODS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEIGHT = 3.6  # inches, of a panel


def write_demonstration(shown: Mapping[str, Any], folder: str | Path) -> dict[str, Path]:
    """Write ``demo.html``, ``demo.png`` and ``demo.json``.

    Args:
        shown: the ``examples``, what was ``measured``, and the ``full`` measurement or None.
        folder: made if it is not there.

    Returns:
        The files by suffix.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputWriteError: the folder cannot be written to.
    """
    measurements = [shown[name] for name in ("full", "measured") if shown[name]]
    png = image(picture(*measurements), "png", dpi=200)
    page = render(
        "demonstration.html.j2",
        package=__package__,
        shown=shown,
        measurements=measurements,
        picture=data_url(png, "image/png"),
        chosen=CHOSEN,
        title_of=title_of,
        in_brackets=in_brackets,
    )
    data = json.dumps(shown, indent=2, allow_nan=False) + "\n"
    contents = {"html": page.encode(), "png": png, "json": data.encode()}
    write_files(folder, {f"demo.{suffix}": content for suffix, content in contents.items()})
    return {suffix: Path(folder) / f"demo.{suffix}" for suffix in contents}


def picture(*measurements: Mapping[str, Any]) -> Figure:
    """Scores by the position of the gold document, a panel for each measurement.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure, panels = new_figure(len(measurements), height=_HEIGHT)
    for axes, measured in zip(panels, measurements, strict=True):
        share = measured["metric"] == "accuracy"
        lines = {
            title_of(curve["label"]): [Estimate(**each) for each in curve[measured["metric"]]]
            for curve in measured["curves"]
        }
        positions = measured["curves"][0]["positions"]
        draw_lines(axes, lines, positions, scale=100 if share else 1)
        last = measured["documents"] - 1
        axes.set_xlabel(f"Position of the gold document (0 to {last})")
        axes.set_ylabel("Accuracy, %" if share else "Log-likelihood, nats")
        axes.set_title(
            f"{measured['model']}\n{measured['questions']} questions; bars: 95 % intervals",
            fontsize=9,
        )
    return figure


def title_of(label: str) -> str:
    """A method's name in print; a label that is none as it is."""
    if label == "none":
        return "Unmodified"
    return METHODS.get(label).info.title if label in METHODS else label


def in_brackets(mean: Mapping[str, Any], *, share: bool) -> str:
    """``38.0 [14.2, 69.4]`` in per cent, or ``−9.61 [−13.84, −6.20]``."""
    return Estimate(**mean).text(share=share)
