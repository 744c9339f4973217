"""Models x tasks x methods, from a configuration, resumable."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rag_middle.evaluation.conditions import position
from rag_middle.evaluation.config import EvaluationConfig, ModelConfig, Published, TaskConfig
from rag_middle.evaluation.cost import measure_costs
from rag_middle.evaluation.provenance import software
from rag_middle.evaluation.runner import check_measurable, run
from rag_middle.evaluation.statistics import Estimate
from rag_middle.evaluation.summary import Summary, summarised
from rag_middle.files import write_files
from rag_middle.generation import RagMiddleModel

__all__ = ["Cell", "evaluate_matrix", "markdown_tables", "write_matrix"]

#: Called with what is run, the answers there are and those there will be.
MatrixProgress = Callable[[str, int, int], None]

_COST_PROMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One model on one task.

    Attributes:
        model: its name in the configuration.
        task: label of the task.
        summary: all methods.
        identity: what tells the model from others.
        software: versions and device.
        provenance: of the task's data.
        published: numbers of a paper for this cell.
    """

    model: str
    task: str
    summary: Summary
    identity: dict[str, Any]
    software: dict[str, str]
    provenance: str
    published: tuple[Published, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "model": self.model,
            "task": self.task,
            "summary": self.summary.to_dict(),
            "identity": self.identity,
            "software": self.software,
            "provenance": self.provenance,
            "published": {each.method: each.mean for each in self.published},
        }


def evaluate_matrix(
    config: EvaluationConfig,
    load: Callable[[ModelConfig], RagMiddleModel],
    *,
    data: str | Path,
    records: str | Path | None = None,
    progress: MatrixProgress | None = None,
) -> Iterator[Cell]:
    """Run a configuration, one model after the other.

    Args:
        config: what to run.
        load: makes a model from its entry.
        data: folder that relative paths of the tasks are taken from.
        records: folder to keep answers in, and to continue from.
        progress: told after every few batches.

    Yields:
        A cell as soon as it is done.

    Raises:
        As `rag_middle.evaluation.run`; data is looked for before any model is loaded.
    """
    tasks = [(each, config.task_of(each, data)) for each in config.tasks]
    for entry in config.models:
        for task_entry, task in tasks:
            check_measurable(
                task, [*config.methods, *entry.methods], config.measurement_of(task_entry)
            )
    for entry in config.models:
        model = load(entry)
        for task_entry, task in tasks:
            how = config.measurement_of(task_entry)
            name = f"{entry.name}, {task_entry.name}"
            kept = None if records is None else Path(records) / _file(entry, task_entry)
            results = run(
                model,
                task,
                [*config.methods, *entry.methods],
                how,
                records=kept,
                progress=(lambda *at, what=name: progress(what, *at)) if progress else None,
            )
            costs = None
            if config.cost:
                places = results.places
                middle = position(places[len(places) // 2]) if places else task.conditions()[0]
                few = [task.prompt(item, middle) for item in results.items[:_COST_PROMPTS]]
                costs = measure_costs(model, results.methods, few, template=how.template)
            yield Cell(
                model=entry.name,
                task=task_entry.name,
                summary=summarised(results, costs),
                identity=dict(results.model),
                software=software(model),
                provenance=task.provenance,
                published=tuple(
                    each
                    for each in config.published
                    if (each.model, each.task) == (entry.name, task_entry.name)
                ),
            )


def _file(model: ModelConfig, task: TaskConfig) -> str:
    return "--".join(re.sub(r"[^\w.-]+", "-", each) for each in (model.name, task.name)) + ".jsonl"


def write_matrix(config: EvaluationConfig, cells: list[Cell], folder: str | Path) -> Path:
    """Write ``results.json`` and ``results.md`` into a folder; returns the second's path.

    Raises:
        OutputWriteError: the folder cannot be written to; earlier results are as they were.
    """
    data = {
        "title": config.title,
        "published_source": config.source,
        "cells": [each.to_dict() for each in cells],
    }
    contents = {
        "results.json": json.dumps(data, indent=2, allow_nan=False) + "\n",
        "results.md": markdown_tables(config, cells),
    }
    write_files(folder, {name: text.encode() for name, text in contents.items()})
    return Path(folder) / "results.md"


def markdown_tables(config: EvaluationConfig, cells: list[Cell]) -> str:
    """A table per cell; numbers of papers in a column of their own, labelled as theirs."""
    parts = [f"# {config.title}"]
    for cell in cells:
        parts.append(f"## {cell.model}: {cell.task}")
        parts.append(_table(cell, config.source))
        versions = ", ".join(f"{name} {version}" for name, version in cell.software.items())
        parts.append(
            f"{cell.summary.metric.title}, {cell.summary.questions} questions, 95 % bootstrap "
            f"intervals. {cell.provenance}. {versions}."
        )
    return "\n\n".join(parts) + "\n"


def _table(cell: Cell, source: str) -> str:
    share = cell.summary.metric.share
    theirs = {each.method: each.mean for each in cell.published}
    head = ["method", "mean", "minus none", "worst place", "gap", "flips", "time"]
    rows = []
    for each in cell.summary.methods:
        curve = each.curve
        rows.append(
            [
                each.label,
                _amount(each.mean, share),
                _amount(each.difference, share),
                _amount(curve.worst if curve else None, share),
                _amount(curve.gap if curve else None, share),
                _amount(each.flip_rate, True),
                f"×{each.cost.first_token_ratio:.2f}" if each.cost else "",
            ]
        )
    if theirs:
        head.append(f"published ({source or 'theirs'})")
        for row in rows:
            row.append(f"{theirs.pop(row[0]):g}" if row[0] in theirs else "")
        rows += [
            [f"{name} (not run)", *[""] * (len(head) - 2), f"{theirs[name]:g}"] for name in theirs
        ]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _amount(each: Estimate | None, share: bool) -> str:
    if each is None:
        return ""
    scale, digits = (100, 1) if share else (1, 2)
    low, value, high = (f"{scale * v:.{digits}f}" for v in (each.low, each.value, each.high))
    return f"{value} [{low}, {high}]"
