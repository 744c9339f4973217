"""Reports as files: one self-contained HTML page, a picture, JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from rag_middle.evaluation.conclusions import comparisons
from rag_middle.evaluation.diagnosis import Diagnosis, profile_in_words, searched_notes
from rag_middle.evaluation.grid import Grid, grid_of
from rag_middle.evaluation.measurement import BASELINE
from rag_middle.evaluation.pages import render
from rag_middle.evaluation.plots import image, plot_grid, plot_position_curves
from rag_middle.evaluation.results import PositionCurves, Results, Summary
from rag_middle.evaluation.shapes import SHAPES
from rag_middle.evaluation.wrong_answers import missing_answers, wrong_answers
from rag_middle.files import expanded, write_files
from rag_middle.profiles import PROFILE_FILE, write_profile

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHARE_OF_TIME = 0.05  # of a run that interim pages may take


def write_report(diagnosis: Diagnosis, folder: str | Path, *, command: str = "") -> Path:
    """Write ``report.html``, ``report.png``, ``report.json`` and ``profile.json`` into a folder.

    ``profile:FOLDER`` is the recommendation as a method. A grid has a picture of its own,
    ``report-grid.png``.

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
    page = report_page(diagnosis.results, diagnosis, command=command)
    charts = _charts(diagnosis.curves, diagnosis.grid)
    return _write(folder, "report", page, {**diagnosis.to_dict(), "repeat": command}, charts)


def write_evaluation(results: Results, folder: str | Path, *, command: str = "") -> Path:
    """Write ``evaluation.html``, ``evaluation.png`` and ``evaluation.json`` into a folder.

    Args:
        results: of a run; without one gold document there are no curves, and a picture
            (``evaluation-grid.png``) only of a task with rows and columns.
        folder, command: as for `write_report`.

    Returns:
        The path of the page.

    Raises:
        MissingExtraError, OutputWriteError: as `write_report`.
    """
    curves, grid = results.curves() if results.positions else None, grid_of(results)
    data = {
        **results.to_dict(),
        "curves": curves and curves.to_dict(),
        "summary": results.summary().to_dict(),
        "grid": grid and grid.to_dict(),
        "notes": run_notes(results),
        "repeat": command,
    }
    page = report_page(results, command=command)
    return _write(folder, "evaluation", page, data, _charts(curves, grid))


def run_notes(results: Results) -> tuple[str, ...]:
    """What bears on the figures of a run, whatever it varied."""
    return (*missing_answers(results), *searched_notes(results))


class InterimReport:
    """The page of a run while it goes on, which a browser loads again by itself.

    Pass it as `interim` of `run` or `diagnose`. The final report replaces the page; a run that was
    killed leaves it.

    Args:
        folder: made if it is not there.
        seconds: between two pages, at least; more where making one takes long.
        name: of the file, without ``.html``, the final report's.
        command: that repeats the run, shown on the page.

    Raises:
        MissingExtraError: as `report_page`; when called.
        OutputWriteError: the folder cannot be written to; when called.
    """

    def __init__(
        self, folder: str | Path, *, seconds: float = 60, name: str = "report", command: str = ""
    ) -> None:
        self._path = expanded(folder)
        self._seconds = seconds
        self._name = name
        self._command = command
        self._due = monotonic() + seconds

    def __call__(self, results: Results, questions: int) -> None:
        """Write the page, if it is time.

        Args:
            results: of the questions that have all their answers so far.
            questions: of the run.
        """
        start = monotonic()
        if start < self._due:
            return
        page = report_page(
            results, command=self._command, questions=questions, refresh=max(1, self._seconds)
        )
        write_files(self._path, {f"{self._name}.html": page.encode()})
        took = monotonic() - start
        self._due = start + max(self._seconds, took / _SHARE_OF_TIME)


def report_page(
    results: Results,
    diagnosis: Diagnosis | None = None,
    *,
    command: str = "",
    questions: int | None = None,
    refresh: float | None = None,
) -> str:
    """The page of a run: charts are part of it, nothing is loaded from anywhere.

    Args:
        diagnosis: what follows from the results, if that was asked.
        questions: of the run, where it is still going on.
        refresh: seconds after which a browser loads the page again; None for never.

    Raises:
        MissingExtraError: there are charts, and matplotlib is not installed.
    """
    curves = diagnosis.curves if diagnosis else results.curves() if results.positions else None
    summary = diagnosis.summary if diagnosis else results.summary()
    grid = diagnosis.grid if diagnosis else grid_of(results)
    return render(
        "report.html.j2",
        charts=_charts(curves, grid),
        results=results,
        diagnosis=diagnosis,
        curves=curves,
        summary=summary,
        grid=grid,
        share=summary.metric.share,
        shape=SHAPES[diagnosis.shape.name] if diagnosis else "",
        use=profile_in_words(diagnosis.profile) if diagnosis else "",
        sentence=_sentence(summary),
        comparisons=comparisons(results.compared),
        notes=diagnosis.notes if diagnosis else run_notes(results),
        wrong=diagnosis.wrong if diagnosis else wrong_answers(results),
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        running=questions,
        refresh=refresh and round(refresh),
    )


def _charts(curves: PositionCurves | None, grid: Grid | None) -> dict[str, Figure]:
    """By what a file's name ends with."""
    charts = {"": plot_position_curves(curves)} if curves else {}
    return {**charts, "-grid": plot_grid(grid)} if grid else charts


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


def _write(
    folder: str | Path,
    name: str,
    page: str,
    data: Mapping[str, Any],
    charts: Mapping[str, Figure],
) -> Path:
    files = {
        f"{name}.json": (json.dumps(data, indent=2, allow_nan=False) + "\n").encode(),
        f"{name}.html": page.encode(),
        **{f"{name}{kind}.png": image(chart, "png") for kind, chart in charts.items()},
    }
    write_files(folder, files)
    return expanded(folder) / f"{name}.html"
