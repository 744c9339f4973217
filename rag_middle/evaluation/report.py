"""A diagnosis as files: one self-contained HTML page, a picture, JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import jinja2
from markupsafe import Markup

from rag_middle.evaluation.diagnosis import Diagnosis
from rag_middle.evaluation.measurement import BASELINE
from rag_middle.evaluation.plots import (
    data_uri,
    image,
    plot_cost,
    plot_gaps,
    plot_overview,
    plot_position_curves,
)
from rag_middle.evaluation.shapes import SHAPES
from rag_middle.evaluation.statistics import Estimate
from rag_middle.files import write_files

__all__ = ["ReportFiles", "estimate_cell", "html_report", "write_report"]


@dataclass(frozen=True, slots=True)
class ReportFiles:
    """Where the files of a report are.

    Attributes:
        html: the page.
        png: the charts.
        json: everything as data.
    """

    html: Path
    png: Path
    json: Path


def write_report(diagnosis: Diagnosis, folder: str | Path, *, command: str = "") -> ReportFiles:
    """Write ``report.html``, ``report.png`` and ``report.json`` into a folder.

    Args:
        diagnosis: what to report.
        folder: made if it is not there.
        command: that repeats the diagnosis, shown on the page.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputWriteError: the folder cannot be written to; an earlier report is as it was.
    """
    folder = Path(folder)
    files = ReportFiles(folder / "report.html", folder / "report.png", folder / "report.json")
    data = {**diagnosis.to_dict(), "repeat": command}
    overview = plot_overview(diagnosis.curves, diagnosis.answer_time_ratios)
    write_files(
        folder,
        {
            files.json.name: (json.dumps(data, indent=2, allow_nan=False) + "\n").encode(),
            files.png.name: image(overview, "png"),
            files.html.name: html_report(diagnosis, command=command).encode(),
        },
    )
    return files


def html_report(diagnosis: Diagnosis, *, command: str = "") -> str:
    """The page: charts are part of it, nothing is loaded from anywhere.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    curves, ratios = diagnosis.curves, diagnosis.answer_time_ratios
    charts = {
        "Score by the position of the gold document": plot_position_curves(curves),
        "Gap between best and worst position, by method": plot_gaps(curves),
    }
    if ratios:
        charts["Score at the worst position over cost"] = plot_cost(curves, ratios)
    source = resources.files(__package__).joinpath("report.html.j2").read_text(encoding="utf-8")
    # Labels, names and texts come from data and configuration: all of them are escaped.
    page = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    page.filters["cell"] = estimate_cell
    page.filters["code_spans"] = _code_spans
    return page.from_string(source).render(
        diagnosis=diagnosis,
        curves=curves,
        share=curves.metric.share,
        ratios=ratios,
        baseline=BASELINE,
        shape=SHAPES[diagnosis.shape.name],
        charts={text: data_uri(figure) for text, figure in charts.items()},
        command=command,
    )


def estimate_cell(
    estimate: Estimate | None, *, share: bool, digits: int | None = None, signed: bool = False
) -> Markup:
    """The value, and its interval below it; arguments as for `Estimate.text`."""
    if estimate is None:
        return Markup("–")
    if estimate.exact:
        return Markup("0<small>exact</small>")
    value, _, interval = estimate.text(share=share, digits=digits, signed=signed).partition(" ")
    return Markup("{}<small>{}</small>").format(value, interval)


def _code_spans(text: str) -> Markup:
    """What is between backticks as code; everything is escaped."""
    parts = [
        Markup("<code>{}</code>" if index % 2 else "{}").format(part)
        for index, part in enumerate(text.split("`"))
    ]
    return Markup("").join(parts)
