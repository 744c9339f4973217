"""Tasks by name, and by what a data file looks like; what a task is: `Task`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from rag_middle.errors import ConfigError, FileFormatError
from rag_middle.evaluation.tasks.base import Task
from rag_middle.evaluation.tasks.data_files import first_entry
from rag_middle.passages import passages_path
from rag_middle.registry import Registry, check_names

__all__ = ["TASKS", "Task", "make_task", "shipped_questions", "task_for_file"]


TASKS: Registry[type[Task]] = Registry("task", entry_point_group="rag_middle.tasks", base=Task)
TASKS.register("key_value_retrieval", f"{__name__}.key_value:KeyValueRetrieval")
TASKS.register("multi_document_qa", f"{__name__}.questions:MultiDocumentQA")
TASKS.register("own_questions", f"{__name__}.questions:OwnQuestions")

#: Fields that tell a format, the most telling first. Only files of Lost in the Middle have
#: ``ctxs``: questions with a title and a text are anybody's.
_FORMATS = {
    "ordered_kv_records": "key_value_retrieval",
    "ctxs": "multi_document_qa",
    "documents": "own_questions",
    "gold": "own_questions",
    "text": "own_questions",
}


def make_task(name: str, options: Mapping[str, Any] | None = None) -> Task:
    """A task from its name and parameters.

    Raises:
        UnknownNameError: no such task, with the nearest name.
        ConfigError: parameters that it does not have, lacks or refuses.
        FileFormatError: a file that is not there or cannot be read.
    """
    kind = TASKS.get(name)
    values = dict(options or {})
    names = [field.name for field in fields(kind)]
    check_names(f"Task {name}", values, names, ConfigError)
    for field in fields(kind):
        if field.default is MISSING and values.get(field.name) is None:
            raise ConfigError(f"Task {name} needs {field.name!r}, such as the path of its data.")
    return kind(**values)


def shipped_questions(**options: Any) -> Task:
    """The task of the 600 real questions that come with the package (`rag_middle.passages`).

    Ten documents in a prompt; the others are those most like the question (with more than some
    twenty, an embedder looks for them: extra ``demo``).

    Args:
        options: of `OwnQuestions`.

    Raises:
        ConfigError: options that it does not have.
    """
    defaults = {"data": passages_path(), "documents": 10, "distractors": "hard"}
    return make_task("own_questions", {**defaults, **options})


def task_for_file(path: str | Path, **options: Any) -> Task:
    """The task that a data file is for, by the fields of its first line.

    Args:
        path: in any of the formats of the tasks: JSON lines, a JSON list, CSV or Parquet.
        options: of the task, such as ``documents``; those it does not have are refused.

    Raises:
        FileFormatError: the file cannot be read, or has none of the formats.
        ConfigError: options that this task does not have.
    """
    line, first = first_entry(path)
    for name, task_name in _FORMATS.items():
        if name in first:
            return make_task(task_name, {"data": path, **options})
    raise FileFormatError(
        f"{line} has none of the known formats. For questions of your own, write lines "
        'such as {"question": "...", "answers": ["..."], "gold": "...", "distractors": ["..."]}; '
        f"fields found: {', '.join(first) or 'none'}."
    )
