"""The tasks by name; what a task is: `rag_middle.evaluation.tasks.base.Task`."""

from __future__ import annotations

from rag_middle.evaluation.tasks.abstention import Abstention
from rag_middle.evaluation.tasks.base import Task
from rag_middle.evaluation.tasks.helmet import Helmet
from rag_middle.evaluation.tasks.invented_documents import InventedDocuments
from rag_middle.evaluation.tasks.key_value import KeyValueChains, KeyValueRetrieval
from rag_middle.evaluation.tasks.longbench_v2 import LongBenchV2
from rag_middle.evaluation.tasks.mrcr import Mrcr
from rag_middle.evaluation.tasks.multi_hop import MultiHop
from rag_middle.evaluation.tasks.nolima import NoLiMa
from rag_middle.evaluation.tasks.questions import MultiDocumentQA, OwnQuestions
from rag_middle.evaluation.tasks.registered import TASKS, make_task, task_for_file
from rag_middle.evaluation.tasks.retrieved_qa import RetrievedQA
from rag_middle.evaluation.tasks.ruler import Ruler

__all__ = [
    "TASKS",
    "Abstention",
    "Helmet",
    "InventedDocuments",
    "KeyValueChains",
    "KeyValueRetrieval",
    "LongBenchV2",
    "Mrcr",
    "MultiDocumentQA",
    "MultiHop",
    "NoLiMa",
    "OwnQuestions",
    "RetrievedQA",
    "Ruler",
    "Task",
    "make_task",
    "task_for_file",
]
