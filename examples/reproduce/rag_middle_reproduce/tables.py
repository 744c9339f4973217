"""Models x tasks x methods, resumable, and the tables of their results."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rag_middle import RagMiddleModel
from rag_middle.evaluation import Estimate, PositionCurves, ProgressCallback, Summary, run
from rag_middle.evaluation.diagnosis import answer_time_ratios

if TYPE_CHECKING:
    from rag_middle_reproduce.config import EvaluationConfig, ModelConfig


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One model on one task.

    Attributes:
        model: its name in the configuration.
        task: label of the task.
        summary: all methods.
        curves: over gold positions; None without gold documents.
        identity: what tells the model from others.
        software: versions and device.
        provenance: of the task's data.
        time_ratios: time of an answer next to the unmodified model's, by label; empty where times
            were not measured.
        published: numbers of a paper for this cell, by method: a mean, or one for each position.
    """

    model: str
    task: str
    summary: Summary
    curves: PositionCurves | None
    identity: dict[str, Any]
    software: dict[str, str]
    provenance: str
    time_ratios: dict[str, float]
    published: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            **vars(self),
            "summary": self.summary.to_dict(),
            "curves": None if self.curves is None else self.curves.to_dict(),
        }


def cells_of(
    config: EvaluationConfig,
    entry: ModelConfig,
    model: RagMiddleModel,
    *,
    data: Path,
    records: Path,
    progress: ProgressCallback | None = None,
) -> Iterator[Cell]:
    """Ask one model.

    Args:
        config: what to run.
        entry: of the model.
        model: the same, loaded.
        data: folder of the tasks' files.
        records: folder to keep answers in, and to continue from.
        progress: called with the number of answers so far and the number of all, of a cell.

    Yields:
        A cell as soon as it is done.

    Raises:
        As `rag_middle.evaluation.run`.
    """
    methods = config.methods_of(entry, data, model)
    # Tasks, each with its main score and then with those that it has besides.
    for task_entry, metric in ((t, m) for t in config.tasks for m in (None, *t.also)):
        task, label = task_entry.make(data, entry), task_entry.label
        measurement = config.measurement_of(task_entry, metric)
        path = records / f"{file_name(entry.name, label)}.jsonl"
        results = run(model, task, methods, measurement, records=path, progress=progress)
        timed = config.cost and metric is None
        published = {} if metric else config.published.get(entry.name, {}).get(label, {})
        yield Cell(
            model=entry.name,
            task=label if metric is None else f"{label}, {metric}",
            summary=results.summary(),
            curves=results.curves() if results.positions else None,
            identity=dict(results.model),
            software=dict(results.software),
            provenance=task.provenance,
            time_ratios=answer_time_ratios(model, results) if timed else {},
            published=published,
        )


def file_name(*parts: str) -> str:
    """One name of several, with nothing in it that a file's cannot have."""
    return "--".join(re.sub(r"[^\w.-]+", "-", part) for part in parts)


def markdown_tables(config: EvaluationConfig, cells: list[Cell], note: str = "") -> str:
    """A table per cell; numbers of papers in a column of their own, labelled as theirs.

    Args:
        config: of the run.
        cells: those that are done.
        note: what to know before reading any number.
    """
    parts = [f"# {config.title}", *([f"**{note}**"] if note else [])]
    for cell in cells:
        versions = ", ".join(f"{name} {version}" for name, version in cell.software.items())
        parts += [
            f"## {cell.model}: {cell.task}",
            _table(cell, config.source),
            f"{cell.summary.metric.title}, {cell.summary.questions} questions, 95 % bootstrap "
            f"intervals. {cell.provenance}. {versions}.",
        ]
    return "\n\n".join(filter(None, [*parts, averages_table(config, cells)])) + "\n"


def averages_table(config: EvaluationConfig, cells: Sequence[Cell]) -> str:
    """Means of the tasks' means by method, a table for each model; empty without averages."""
    parts = []
    for model in dict.fromkeys(cell.model for cell in cells):
        means = {
            cell.task: {
                method.label: method.mean.value * (100 if cell.summary.metric.share else 1)
                for method in cell.summary.methods
            }
            for cell in cells
            if cell.model == model
        }
        rows = []
        for label, names in config.averages.items():
            if not all(name in means for name in names):
                continue  # not yet
            labels = means[names[0]]
            means[label] = {name: fmean(means[part][name] for part in names) for name in labels}
            theirs = dict(config.published.get(model, {}).get(label, {}))
            rows += [
                [label, name, f"{mean:.2f}", _theirs(theirs.pop(name, None))]
                for name, mean in means[label].items()
            ]
            rows += [
                [label, f"{name} (not run)", "", _theirs(mean)] for name, mean in theirs.items()
            ]
        if rows:
            header = ["average", "method", "mean", f"published ({config.source or 'theirs'})"]
            parts += [f"## {model}: averages", markdown_table(header, rows)]
    return "\n\n".join(parts)


def _table(cell: Cell, source: str) -> str:
    share = cell.summary.metric.share
    theirs = dict(cell.published)
    header = ["method", "mean", "minus none", "worst position", "gap", "flips", "time"]
    header += [f"published ({source or 'theirs'})"] if theirs else []
    rows = []
    for method in cell.summary.methods:
        curve = cell.curves[method.label] if cell.curves else None
        row = [
            method.label,
            method.mean.text(share=share),
            _cell(method.difference, share),
            _cell(curve.worst if curve else None, share),
            _cell(curve.gap if curve else None, share),
            _cell(method.consistency.flip_rate if method.consistency else None, True),
            f"×{cell.time_ratios[method.label]:.2f}" if cell.time_ratios else "",
        ]
        rows.append([*row, _theirs(theirs.pop(method.label, None))] if cell.published else row)
    empty = [""] * (len(header) - 2)
    rows += [[f"{name} (not run)", *empty, _theirs(mean)] for name, mean in theirs.items()]
    return markdown_table(header, rows)


def _theirs(numbers: Any) -> str:
    """A published mean, or that of a number for each position, with these."""
    if isinstance(numbers, list):
        return f"{fmean(numbers):.4g} ({' '.join(f'{number:g}' for number in numbers)})"
    return "" if numbers is None else f"{numbers:g}"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(estimate: Estimate | None, share: bool) -> str:
    return "" if estimate is None else estimate.text(share=share)
