"""Models x tasks x methods, resumable, and the tables of their results."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rag_middle import RagMiddleModel
from rag_middle.evaluation import (
    Estimate,
    PositionCurves,
    ProgressCallback,
    Summary,
    run,
)
from rag_middle.evaluation.diagnosis import answer_time_ratios
from rag_middle_reproduce.config import EvaluationConfig, ModelConfig, Published, TaskConfig

__all__ = ["Cell", "evaluate", "markdown_table", "markdown_tables"]


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
        published: numbers of a paper for this cell.
    """

    model: str
    task: str
    summary: Summary
    curves: PositionCurves | None
    identity: dict[str, Any]
    software: dict[str, str]
    provenance: str
    time_ratios: dict[str, float]
    published: tuple[Published, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            **vars(self),
            "summary": self.summary.to_dict(),
            "curves": None if self.curves is None else self.curves.to_dict(),
            "published": {score.method: score.mean for score in self.published},
        }


def evaluate(
    config: EvaluationConfig,
    load: Callable[[ModelConfig], RagMiddleModel],
    *,
    data: Path,
    records: Path,
    progress: ProgressCallback | None = None,
) -> Iterator[Cell]:
    """Run a configuration, one model after the other.

    Args:
        config: what to run.
        load: makes a model from its entry.
        data: folder of the tasks' files.
        records: folder to keep answers in, and to continue from.
        progress: called with the number of answers so far and the number of all, of a cell.

    Yields:
        A cell as soon as it is done.

    Raises:
        As `rag_middle.evaluation.run`; data is looked for before any model is loaded.
    """
    config.check(data)
    for entry in config.models:
        model = load(entry)
        for task_entry, metric in _tables(config):
            task = task_entry.make(data, entry)
            measurement = config.measurement_of(task_entry, metric)
            name = "--".join(re.sub(r"[^\w.-]+", "-", s) for s in (entry.name, task_entry.label))
            results = run(
                model,
                task,
                config.methods_of(entry, data),
                measurement,
                records=records / f"{name}.jsonl",
                progress=progress,
            )
            yield Cell(
                model=entry.name,
                task=task_entry.label if metric is None else f"{task_entry.label}, {metric}",
                summary=results.summary(),
                curves=results.curves() if results.positions else None,
                identity=dict(results.model),
                software=dict(results.software),
                provenance=task.provenance,
                time_ratios=answer_time_ratios(model, results)
                if config.cost and metric is None
                else {},
                published=tuple(
                    score
                    for score in config.published
                    if metric is None
                    and (score.model, score.task) == (entry.name, task_entry.label)
                ),
            )


def _tables(config: EvaluationConfig) -> Iterator[tuple[TaskConfig, str | None]]:
    """Tasks, each with its main score and then with those that it has besides."""
    for task in config.tasks:
        for metric in (None, *task.also):
            yield task, metric


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
    return "\n\n".join(parts) + "\n"


def _table(cell: Cell, source: str) -> str:
    share = cell.summary.metric.share
    theirs = {score.method: f"{score.mean:g}" for score in cell.published}
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
        rows.append([*row, theirs.pop(method.label, "")] if cell.published else row)
    empty = [""] * (len(header) - 2)
    rows += [[f"{name} (not run)", *empty, mean] for name, mean in theirs.items()]
    return markdown_table(header, rows)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(estimate: Estimate | None, share: bool) -> str:
    return "" if estimate is None else estimate.text(share=share)
