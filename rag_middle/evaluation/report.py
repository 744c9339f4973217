"""A diagnosis as files: one self-contained HTML page, a picture, JSON."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
from markupsafe import Markup

from rag_middle.evaluation.diagnosis import Diagnosis
from rag_middle.evaluation.measurement import BASELINE
from rag_middle.evaluation.plots import (
    plot_cost,
    plot_gaps,
    plot_overview,
    plot_position_curves,
)
from rag_middle.evaluation.shape import IN_WORDS
from rag_middle.evaluation.statistics import Estimate
from rag_middle.files import write_files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ReportFiles", "html_report", "write_report"]


@dataclass(frozen=True, slots=True)
class ReportFiles:
    """Where a report lies.

    Attributes:
        html: the page.
        png: the charts.
        json: everything as data.
    """

    html: Path
    png: Path
    json: Path


def write_report(found: Diagnosis, folder: str | Path, *, command: str = "") -> ReportFiles:
    """Write ``report.html``, ``report.png`` and ``report.json`` into a folder.

    Args:
        found: what to report.
        folder: made if it is not there.
        command: that repeats the diagnosis, shown on the page.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputWriteError: the folder cannot be written to; an earlier report is as it was.
    """
    folder = Path(folder)
    files = ReportFiles(folder / "report.html", folder / "report.png", folder / "report.json")
    ratios = {each.label: found.answer_ratio(each.label) for each in found.summary.methods}
    data = {**found.to_dict(), "repeat": command}
    picture = io.BytesIO()
    plot_overview(found.curves, ratios).savefig(picture, format="png", dpi=150)
    write_files(
        folder,
        {
            files.json.name: (json.dumps(data, indent=2, allow_nan=False) + "\n").encode(),
            files.png.name: picture.getvalue(),
            files.html.name: html_report(found, command=command).encode(),
        },
    )
    return files


def html_report(found: Diagnosis, *, command: str = "") -> str:
    """The page: charts are part of it, nothing is loaded from anywhere.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    ratios = {each.label: found.answer_ratio(each.label) for each in found.summary.methods}
    charts = [
        ("Score by the place of the document with the answer", plot_position_curves(found.curves)),
        ("Gap between best and worst place, by method", plot_gaps(found.curves)),
    ]
    if any(ratio is not None for ratio in ratios.values()):
        charts.append(("Score at the worst place over cost", plot_cost(found.curves, ratios)))
    source = resources.files(__package__).joinpath("report.html.j2").read_text(encoding="utf-8")
    # Labels, names and texts come from data and configuration: all of them are escaped.
    page = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    page.filters["amount"] = lambda each: _amount(each, share=found.curves.metric.share)
    page.filters["signed"] = lambda each: _signed(each, share=found.curves.metric.share)
    page.filters["percent"] = lambda each: _amount(each, share=True)
    page.filters["cell"] = _cell
    page.filters["coded"] = _coded
    page.filters["shape"] = lambda each: IN_WORDS[each]
    return page.from_string(source).render(
        found=found,
        ratios=ratios,
        baseline=BASELINE,
        charts=[(text, _as_data_uri(drawn)) for text, drawn in charts],
        command=command,
    )


def _as_data_uri(drawn: Figure) -> str:
    """An image of its own, so that the ids inside its SVG meet no others."""
    target = io.BytesIO()
    # No date: the same results give the same page.
    drawn.savefig(target, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(target.getvalue()).decode("ascii")


def _coded(text: str) -> Markup:
    """What is between backticks as code; everything is escaped."""
    told = [
        Markup("<code>{}</code>" if at % 2 else "{}").format(part)
        for at, part in enumerate(text.split("`"))
    ]
    return Markup("").join(told)


def _cell(text: str) -> Markup:
    """The value, and its interval below it."""
    value, _, between = text.partition(" ")
    return Markup("{}<small>{}</small>").format(value, between) if between else Markup(value)


def _amount(each: Estimate | None, *, share: bool) -> str:
    if each is None:
        return "–"
    scale, digits = (100, 1) if share else (1, 2)
    low, value, high = (f"{scale * v:.{digits}f}" for v in (each.low, each.value, each.high))
    return f"{value} [{low}, {high}]".replace("-", "−")


def _signed(each: Estimate | None, *, share: bool) -> str:
    if each is None:
        return "–"
    scale, digits = (100, 1) if share else (1, 2)
    low, value, high = (f"{scale * v:+.{digits}f}" for v in (each.low, each.value, each.high))
    return f"{value} [{low}, {high}]".replace("-", "−")
