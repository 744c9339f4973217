"""Reports: one self-contained HTML page, a picture and JSON as files; tables on a terminal.

``templates/page.html.j2`` is the frame of all pages, with their style sheet; reports of other parts
of the package bring a template of their own beside their module.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from rag_middle.evaluation.conclusions import comparisons
from rag_middle.evaluation.diagnosis import Diagnosis, profile_in_words
from rag_middle.evaluation.measurement import BASELINE
from rag_middle.evaluation.plots import image, plot_position_curves
from rag_middle.evaluation.results import Findings, Results, Summary, findings
from rag_middle.evaluation.statistics import CONFIDENCE, SHAPES, Estimate
from rag_middle.files import expanded, write_files
from rag_middle.profiles import PROFILE_FILE, write_profile
from rag_middle.wording import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

_PACKAGE = "rag_middle.evaluation"


def write_report(diagnosis: Diagnosis, folder: str | Path, *, command: str = "") -> Path:
    """Write ``report.html``, ``report.png``, ``report.json`` and ``profile.json`` into a folder.

    ``profile:FOLDER`` is the recommendation as a method.

    Args:
        diagnosis: what to report.
        folder: made if it is not there.
        command: that repeats the diagnosis, shown on the page.

    Returns:
        The path of the page.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputWriteError: the folder cannot be written to; an earlier report is as it was.
    """
    write_profile(diagnosis.profile, expanded(folder) / PROFILE_FILE)
    return _write(diagnosis, folder, "report", command)


def write_evaluation(results: Results, folder: str | Path, *, command: str = "") -> Path:
    """Write ``evaluation.html``, ``evaluation.png`` and ``evaluation.json`` into a folder.

    Args:
        results: of a run; without one gold document there are no curves, and no picture.
        folder, command: as for `write_report`.

    Returns:
        The path of the page.

    Raises:
        MissingExtraError, OutputWriteError: as `write_report`.
    """
    return _write(findings(results), folder, "evaluation", command)


def _write(found: Findings, folder: str | Path, name: str, command: str) -> Path:
    data = json.dumps({**found.to_dict(), "repeat": command}, indent=2, allow_nan=False)
    files = {
        f"{name}.json": f"{data}\n".encode(),
        f"{name}.html": report_page(found, command=command).encode(),
    }
    if found.curves:
        files[f"{name}.png"] = image(plot_position_curves(found.curves), "png")
    write_files(folder, files)
    return expanded(folder) / f"{name}.html"


def report_page(found: Findings, *, command: str = "") -> str:
    """The page of a run: charts are part of it, nothing is loaded from anywhere.

    Args:
        found: of a run, or a diagnosis.

    Raises:
        MissingExtraError: there are charts, and matplotlib is not installed.
    """
    diagnosis = found if isinstance(found, Diagnosis) else None
    return render(
        "report.html.j2",
        charts={"curves": plot_position_curves(found.curves)} if found.curves else {},
        found=found,
        diagnosis=diagnosis,
        shape=SHAPES[diagnosis.shape.name] if diagnosis else "",
        use=profile_in_words(diagnosis.profile) if diagnosis else "",
        sentence=_sentence(found.summary),
        comparisons=comparisons(found.results.compared),
        command=command,
    )


def _sentence(summary: Summary) -> str:
    """The method with the best mean, and whether it differs from the unmodified model."""
    metric = summary.metric
    best = max(summary.methods, key=lambda method: method.mean.value)
    value = f"{metric.title} {metric.shown(best.mean.value)}"
    if len(summary.methods) == 1:
        return f"The unmodified model: {value} in {summary.questions} questions."
    if best.difference is None:
        return f"No method has a higher mean than the unmodified model ({BASELINE}): {value}."
    significance = "not " if best.difference.includes_zero else ""
    return (
        f"{best.label} has the highest mean: {value}, {metric.amount(best.difference.value)} above "
        f"the unmodified model, which is {significance}statistically significant."
    )


# -- pages ---------------------------------------------------------------------------------------


def render(
    template: str,
    *,
    package: str = _PACKAGE,
    charts: Mapping[str, Figure] = MappingProxyType({}),
    **context: Any,
) -> str:
    """A page as text; whatever is put into it is escaped.

    Args:
        template: its file name, in ``templates`` of the package.
        charts: pictures for the template, by name.
    """
    # Labels, names, questions and answers are anybody's text: all of it is escaped.
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package), jinja2.PackageLoader(_PACKAGE)]),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"cell": _estimate_cell, "code_spans": _code_spans}
    pictures = {
        name: data_url(image(chart, "svg"), "image/svg+xml") for name, chart in charts.items()
    }
    return environment.get_template(template).render(charts=pictures, **context)


def data_url(content: bytes, kind: str) -> str:
    """A picture as part of a page, apart from it: its text, ids and styles are its own."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def _estimate_cell(estimate: Estimate | None, *, share: bool, signed: bool = False) -> Markup:
    """The value, and its interval below it; arguments as for `Estimate.text`."""
    if estimate is None:
        return Markup("–")
    if estimate.exact:
        return Markup("0<small>none seen</small>")
    value, _, interval = estimate.text(share=share, signed=signed).partition(" ")
    return Markup("{}<small>{}</small>").format(value, interval)


def _code_spans(text: str) -> Markup:
    """What is between backticks as code; everything is escaped."""
    parts = enumerate(text.split("`"))
    return Markup("").join(Markup("<code>{}</code>").format(p) if i % 2 else p for i, p in parts)


# -- on a terminal --------------------------------------------------------------------------------


def show_diagnosis(out: Console, diagnosis: Diagnosis) -> None:
    """Print the table, answer, shape, recommendation, notes and next steps."""
    curves, share = diagnosis.curves, diagnosis.curves.metric.share
    scale, digits, unit = (100, 1, ", %") if share else (1, 2, "")
    enough = diagnosis.recommendation.reason != "too_few_questions"
    positions = [f"at {position}" for position in curves.positions]
    # Narrow: it has to fit beside the longest name of a method on a terminal of 100 characters.
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("method", overflow="fold")
    for heading in (*positions, "mean", f"gap [{percent(CONFIDENCE)}]", "flips", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for method in diagnosis.summary.methods:
        curve, flips = curves[method.label], method.consistency
        ratio = diagnosis.answer_time_ratios.get(method.label)
        table.add_row(
            Text(method.label, "bold" if method.label == diagnosis.recommendation.label else ""),
            *(f"{scale * x.value:.{digits}f}" for x in (*curve.estimates, method.mean)),
            # Without correct answers there is nothing to lose, and few questions say nothing.
            curve.gap.text(share=share) if method.mean.value and enough else "–",
            "–" if flips is None else percent(flips.flip_rate.value),
            "–" if ratio is None else f"×{ratio:.2f}",
        )
    out.print(table)
    _print(
        out,
        f"{curves.metric.title}{unit}, by the position of the gold document among "
        f"{curves.documents}; {curves.questions} questions; time of an answer next to {BASELINE}.",
    )
    for control in diagnosis.summary.controls:
        _print(out, f"With {control.title}: {control.mean.text(share=share)}.")
    name = diagnosis.results.model["name"]
    _print(out, f"\nDoes {name} lose the middle? {diagnosis.answer.text}")
    if diagnosis.recommendation.compares:  # else the answer has said all that is known
        shape, sure = SHAPES[diagnosis.shape.name], percent(diagnosis.shape.confidence)
        _print(out, f"{shape[0].upper()}{shape[1:]} ({sure} of resamples).")
        out.print(Text(diagnosis.recommendation.text, "bold"), soft_wrap=True)
    left_out = [f"{label}: {reason}" for label, reason in diagnosis.left_out.items()]
    _print(out, *diagnosis.notes, heading=("Note: ", "yellow"))
    _print(out, *left_out, heading=("Left out: ", "yellow"))
    _print(out, *diagnosis.next_steps, heading=("Next: ", "cyan"))


def _print(out: Console, *lines: str, heading: tuple[str, str] | str = "") -> None:
    for line in lines:
        out.print(Text.assemble(heading, line), soft_wrap=True)
