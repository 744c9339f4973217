"""Does this model, on this data, lose the middle, and which method helps?

::

    found = diagnose(model, task_for_file("questions.jsonl"))
    print(found.recommendation.text)

    curves = accuracy_by_position(model, methods=["pine", "ms_poe"], limit=100)
    plot_position_curves(curves).savefig("curves.png")

``tasks``: questions and scores. ``run``: task x method x gold position, resumable. ``Results``: the
answers, as curves with bootstrap intervals. ``diagnose``: what they mean. Charts and reports need
``pip install 'rag-middle[eval]'``.
"""

from rag_middle.evaluation.by_position import accuracy_by_position
from rag_middle.evaluation.diagnosis import Diagnosis, diagnose
from rag_middle.evaluation.fitted import fitted_presets
from rag_middle.evaluation.items import Item
from rag_middle.evaluation.measurement import LabelledMethod, Measurement
from rag_middle.evaluation.plots import plot_cost, plot_gaps, plot_position_curves
from rag_middle.evaluation.recommendation import Recommendation, recommend
from rag_middle.evaluation.records import Record
from rag_middle.evaluation.report import write_report
from rag_middle.evaluation.results import PositionCurve, PositionCurves, Results
from rag_middle.evaluation.runner import run
from rag_middle.evaluation.shape import Shape
from rag_middle.evaluation.statistics import Estimate
from rag_middle.evaluation.summary import Summary, summarised
from rag_middle.evaluation.tasks import (
    TASKS,
    InventedDocuments,
    KeyValueRetrieval,
    LongContextQA,
    MultiDocumentQA,
    MultipleChoice,
    OwnQuestions,
    PairwiseJudge,
    RetrievedQA,
    Task,
    TimelineOrder,
    make_task,
    task_for_file,
)

__all__ = [
    "TASKS",
    "Diagnosis",
    "Estimate",
    "InventedDocuments",
    "Item",
    "KeyValueRetrieval",
    "LabelledMethod",
    "LongContextQA",
    "Measurement",
    "MultiDocumentQA",
    "MultipleChoice",
    "OwnQuestions",
    "PairwiseJudge",
    "PositionCurve",
    "PositionCurves",
    "Recommendation",
    "Record",
    "Results",
    "RetrievedQA",
    "Shape",
    "Summary",
    "Task",
    "TimelineOrder",
    "accuracy_by_position",
    "diagnose",
    "fitted_presets",
    "make_task",
    "plot_cost",
    "plot_gaps",
    "plot_position_curves",
    "recommend",
    "run",
    "summarised",
    "task_for_file",
    "write_report",
]
