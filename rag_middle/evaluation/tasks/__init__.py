"""The tasks by name; what a task is: `rag_middle.evaluation.tasks.base.Task`."""

from __future__ import annotations

from rag_middle.evaluation.tasks.base import Task
from rag_middle.evaluation.tasks.invented_documents import InventedDocuments
from rag_middle.evaluation.tasks.key_value import KeyValueRetrieval

__all__ = ["InventedDocuments", "KeyValueRetrieval", "Task"]
