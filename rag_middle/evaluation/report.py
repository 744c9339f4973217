"""Reports: one self-contained HTML page, a picture and JSON as files; tables on a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from time import monotonic

from rag_middle.evaluation.conclusions import comparisons
from rag_middle.evaluation.diagnosis import Diagnosis, profile_in_words
from rag_middle.evaluation.findings import Findings, findings
from rag_middle.evaluation.measurement import BASELINE
from rag_middle.evaluation.pages import render
from rag_middle.evaluation.plots import image, plot_position_curves
from rag_middle.evaluation.results import Results, Summary
from rag_middle.evaluation.shapes import SHAPES
from rag_middle.files import expanded, write_files
from rag_middle.profiles import PROFILE_FILE, write_profile

_SHARE_OF_TIME = 0.05  # of a run that interim pages may take


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
            findings(results),
            command=self._command,
            questions=questions,
            refresh=max(1, self._seconds),
        )
        write_files(self._path, {f"{self._name}.html": page.encode()})
        took = monotonic() - start
        self._due = start + max(self._seconds, took / _SHARE_OF_TIME)


def report_page(
    found: Findings,
    *,
    command: str = "",
    questions: int | None = None,
    refresh: float | None = None,
) -> str:
    """The page of a run: charts are part of it, nothing is loaded from anywhere.

    Args:
        found: of a run, or a diagnosis.
        questions: of the run, where it is still going on.
        refresh: seconds after which a browser loads the page again; None for never.

    Raises:
        MissingExtraError: there are charts, and matplotlib is not installed.
    """
    diagnosis = found if isinstance(found, Diagnosis) else None
    return render(
        "report.html.j2",
        charts={"curves": plot_position_curves(found.curves)} if found.curves else {},
        found=found,
        diagnosis=diagnosis,
        results=found.results,
        summary=found.summary,
        share=found.summary.metric.share,
        shape=SHAPES[diagnosis.shape.name] if diagnosis else "",
        use=profile_in_words(diagnosis.profile) if diagnosis else "",
        sentence=_sentence(found.summary),
        comparisons=comparisons(found.results.compared),
        command=command,
        running=questions,
        refresh=refresh and round(refresh),
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
