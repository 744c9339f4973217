"""What commands that measure a model share: the questions they ask, and several workers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rag_middle.cli.console import quiet_progress_bars
from rag_middle.cli.models import placed
from rag_middle.cli.options import group
from rag_middle.errors import ConfigError

if TYPE_CHECKING:
    from rag_middle.evaluation import Task
    from rag_middle.generation import RagMiddleModel
    from rag_middle.generation.sharing import ModelCopy
    from rag_middle.workers import Workers

question_flag = partial(typer.Option, rich_help_panel="Questions")


def _questions(
    *,
    data: Path | None = question_flag(
        None, help="Questions with gold documents, JSON lines. Default: 600 shipped."
    ),
    task: str | None = question_flag(
        None, help="Kind of task. Default: told from the form of --data."
    ),
    documents: int | None = question_flag(
        None, min=2, help="Documents per prompt. Default: what the data has, or 10."
    ),
) -> None:
    """Which questions are asked: arguments of `chosen_task`."""


Questions = Annotated[dict[str, Any], group(_questions)]


def chosen_task(task: str | None = None, data: Path | None = None, **options: Any) -> Task:
    """The task of that name or data; the shipped questions where neither is given.

    Args:
        options: of tasks.
    """
    from rag_middle.evaluation.tasks import make_task, shipped_questions, task_for_file

    if options.get("distractors") == "hard":
        quiet_progress_bars()  # of the embedder
    if task is None:
        return shipped_questions(**options) if data is None else task_for_file(data, **options)
    if data is not None:
        options["data"] = data
    elif task == "key_value_retrieval" and "documents" in options:
        options["keys"] = options.pop("documents")
    return make_task(task, options)


def numbers(flag: str, text: str) -> list[float]:
    """The numbers that an option joins by commas."""
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"{flag} takes numbers joined by commas, as in 5,10,20; got {text!r}."
        ) from None


def start_workers(
    kind: type[ModelCopy],
    model: RagMiddleModel,
    loading: Mapping[str, Any],
    *,
    backend: str,
    count: int,
    threads: int,
    **fields: Any,
) -> Workers[Any, Any]:
    """Workers of this machine, or of the Ray cluster, each with a copy of the model.

    What they do is said by the `kind` of copy, with its other fields.
    """
    from rag_middle.generation.sharing import origin
    from rag_middle.workers import Processes, RayWorkers

    on_gpu = model.device.type == "cuda"
    if on_gpu and ":" in str(placed(loading).get("device", "")):
        raise ConfigError("Leave the number out of --device: Ray gives each worker its GPU.")
    if on_gpu and backend != "ray":
        raise ConfigError(
            "Several workers on GPUs need --backend ray, which gives each a GPU of its own."
        )
    make_work: Any = kind(**origin(model), options=placed(loading), **fields)
    if backend == "ray":
        return RayWorkers(make_work, count, threads, gpus_each=int(on_gpu))
    return Processes(make_work, count, threads)
