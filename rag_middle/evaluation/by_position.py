"""The short way to a curve: accuracy by the place of the gold document."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rag_middle.evaluation.measurement import BASELINE, Measurement, MethodSpec
from rag_middle.evaluation.results import PositionCurves
from rag_middle.evaluation.runner import Progress, run
from rag_middle.evaluation.tasks import InventedDocuments, Task
from rag_middle.generation import RagMiddleModel

__all__ = ["accuracy_by_position"]


def accuracy_by_position(
    model: RagMiddleModel,
    task: Task | None = None,
    methods: Sequence[MethodSpec] = (BASELINE,),
    *,
    records: str | Path | None = None,
    progress: Progress | None = None,
    **measurement: Any,
) -> PositionCurves:
    """Accuracy at several places of the gold document, under several methods.

    Args:
        model: a loaded model.
        task: one with gold documents; by default questions about ten invented documents.
        methods: what to compare; the unmodified model always comes first.
        records: a file to keep answers in, and to continue from.
        progress: told how many answers there are and will be.
        measurement: fields of `Measurement`: ``limit``, ``positions``, ``scoring``, ``seed``,
            ``max_batch_size``, ...

    Raises:
        As `rag_middle.evaluation.run`.

    Example:
        >>> curves = accuracy_by_position(model, methods=["pine"], limit=50)
        >>> plot_position_curves(curves).savefig("curves.png")
    """
    how = Measurement(**measurement)
    return run(
        model, task or InventedDocuments(), methods, how, records=records, progress=progress
    ).curves()
