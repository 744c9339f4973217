"""Does this model, on this data, lose the middle, and which method helps?

::

    curves = accuracy_by_position(model, methods=["pine", "ms_poe"], limit=100)
    plot_position_curves(curves).savefig("curves.png")

``tasks``: questions and scores. ``run``: task x method x gold position, resumable. ``Results``: the
answers, as curves with bootstrap intervals. Charts need ``pip install 'rag-middle[eval]'``.
"""

from rag_middle.evaluation.by_position import accuracy_by_position
from rag_middle.evaluation.measurement import Measurement
from rag_middle.evaluation.plots import plot_position_curves
from rag_middle.evaluation.results import PositionCurve, PositionCurves, Results
from rag_middle.evaluation.runner import run
from rag_middle.evaluation.statistics import Estimate
from rag_middle.evaluation.tasks import InventedDocuments, KeyValueRetrieval, Task

__all__ = [
    "Estimate",
    "InventedDocuments",
    "KeyValueRetrieval",
    "Measurement",
    "PositionCurve",
    "PositionCurves",
    "Results",
    "Task",
    "accuracy_by_position",
    "plot_position_curves",
    "run",
]
