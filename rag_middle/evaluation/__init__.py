"""Does this model, on this data, lose the middle, and which method helps?

::

    diagnosis = diagnose(model, task_for_file("questions.jsonl"))
    print(diagnosis.recommendation.text)

    results = run(model, shipped_questions(), ["pine", "ms_poe"], Measurement(limit=100))
    plot_position_curves(results.curves()).savefig("curves.png")

`tasks` are questions, prompts and scores; `runner` asks them under every method at every gold
position, and keeps answers in `records`; `results` are these answers as curves and means, whose
intervals are all computed in `statistics`; `diagnosis` says what they mean, by the rules of
`conclusions`; `report` shows it. Charts and reports need ``pip install 'rag-middle[eval]'``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rag_middle.lazy import names_on_first_use

if TYPE_CHECKING:
    from rag_middle.evaluation.conditions import (
        AS_GIVEN,
        CLOSED_BOOK,
        GOLD_ONLY,
        Condition,
        Item,
        arranged_documents,
        position,
        spread_positions,
    )
    from rag_middle.evaluation.diagnosis import Diagnosis, diagnose
    from rag_middle.evaluation.measurement import LabelledMethod, Measurement, labelled_methods
    from rag_middle.evaluation.metrics import METRICS, Metric
    from rag_middle.evaluation.plots import plot_position_curves
    from rag_middle.evaluation.report import write_evaluation, write_report
    from rag_middle.evaluation.results import PositionCurves, Results, Summary
    from rag_middle.evaluation.runner import (
        Answering,
        AnsweringWorkers,
        ProgressCallback,
        check_measurement,
        run,
    )
    from rag_middle.evaluation.statistics import Bootstrap, Estimate
    from rag_middle.evaluation.tasks import TASKS, Task, make_task, shipped_questions, task_for_file
    from rag_middle.evaluation.tasks.data_files import as_answers, get_field, read_entries
    from rag_middle.evaluation.tasks.key_value import KeyValueRetrieval
    from rag_middle.evaluation.tasks.questions import MultiDocumentQA, OwnQuestions

__all__ = [
    "AS_GIVEN",
    "CLOSED_BOOK",
    "GOLD_ONLY",
    "METRICS",
    "TASKS",
    "Answering",
    "AnsweringWorkers",
    "Bootstrap",
    "Condition",
    "Diagnosis",
    "Estimate",
    "Item",
    "KeyValueRetrieval",
    "LabelledMethod",
    "Measurement",
    "Metric",
    "MultiDocumentQA",
    "OwnQuestions",
    "PositionCurves",
    "ProgressCallback",
    "Results",
    "Summary",
    "Task",
    "arranged_documents",
    "as_answers",
    "check_measurement",
    "diagnose",
    "get_field",
    "labelled_methods",
    "make_task",
    "plot_position_curves",
    "position",
    "read_entries",
    "run",
    "shipped_questions",
    "spread_positions",
    "task_for_file",
    "write_evaluation",
    "write_report",
]

# A data file is refused without PyTorch, which the rest needs.
__getattr__, __dir__ = names_on_first_use(__name__)
