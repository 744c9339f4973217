"""The tasks by name; what a task is: `rag_middle.evaluation.tasks.base.Task`."""

from __future__ import annotations

from rag_middle.evaluation.tasks.base import Task
from rag_middle.evaluation.tasks.invented_documents import InventedDocuments
from rag_middle.evaluation.tasks.key_value import KeyValueRetrieval
from rag_middle.evaluation.tasks.long_context import LongContextQA, TimelineOrder
from rag_middle.evaluation.tasks.making import TASKS, make_task, task_for_file
from rag_middle.evaluation.tasks.multiple_choice import MultipleChoice
from rag_middle.evaluation.tasks.pairwise_judge import PairwiseJudge
from rag_middle.evaluation.tasks.questions import MultiDocumentQA, OwnQuestions
from rag_middle.evaluation.tasks.retrieved_qa import RetrievedQA

__all__ = [
    "TASKS",
    "InventedDocuments",
    "KeyValueRetrieval",
    "LongContextQA",
    "MultiDocumentQA",
    "MultipleChoice",
    "OwnQuestions",
    "PairwiseJudge",
    "RetrievedQA",
    "Task",
    "TimelineOrder",
    "make_task",
    "task_for_file",
]
