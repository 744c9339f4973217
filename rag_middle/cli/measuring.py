"""What commands that measure a model share: its questions, loading it, workers."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rag_middle.cli.console import quiet_progress_bars, tell
from rag_middle.cli.options import placed, refuse_set

if TYPE_CHECKING:
    from rag_middle.endpoint import EndpointModel
    from rag_middle.evaluation import Task
    from rag_middle.generation import RagMiddleModel
    from rag_middle.workers import MakeWork, Workers

question_flag = partial(typer.Option, rich_help_panel="Questions")
CALIBRATION_FOLDER = Path("rag-middle-calibration")
_LONG = 60  # seconds, from which on a run's options are named


def data_options(
    *,
    data: Path | None = question_flag(
        None, help="Questions with gold documents, JSON lines. Default: 600 shipped."
    ),
    task: str | None = question_flag(
        None, help="What the questions are. Default: as --data looks."
    ),
    documents: int | None = question_flag(
        None, min=2, help="Of a prompt. Default: what the data has, or 10."
    ),
) -> None:
    """Which questions are asked: arguments of `chosen_task`."""


def load(name: str | None, **options: Any) -> RagMiddleModel:
    """The model of that name, or the default one, without progress bars.

    `options` are arguments of ``RagMiddleModel.from_pretrained``, device as on the command line.

    Raises:
        RagMiddleError: it cannot be loaded, or cannot take the method.
    """
    from rag_middle.generation import RagMiddleModel
    from rag_middle.small_model import default_model

    chosen = default_model() if name is None else name
    quiet_progress_bars()
    return RagMiddleModel.from_pretrained(chosen, **placed(options))


def chosen_task(
    task: str | None = None,
    data: Path | None = None,
    documents: int | None = None,
    **options: Any,
) -> Task:
    """The task of that name or data; the shipped questions where neither is given.

    Args:
        options: more options of tasks; of `distractors`, ``none_relevant`` stands for the task
            ``abstention``.
    """
    from rag_middle.evaluation.tasks import make_task, shipped_questions, task_for_file

    if options.get("distractors") == "hard":
        quiet_progress_bars()  # of the embedder
    if documents is not None:
        options["documents"] = documents
    if options.get("distractors") == "none_relevant" and task is None:
        task = "abstention"
        del options["distractors"]
    if "hops" in options:
        task = task or (None if data else "multi_hop")
    if "phrases" in options:
        task = task or "abstention"
    if task is None:
        return shipped_questions(**options) if data is None else task_for_file(data, **options)
    if data is not None:
        options["data"] = data
    elif task in ("key_value_retrieval", "key_value_chains") and "documents" in options:
        options["keys"] = options.pop("documents")
    return make_task(task, options)


def tell_time(seconds: float, answers: int, *, shorter: str) -> None:
    """Say how long a run will take at most, and what makes it less, by its first answers."""
    took = f"{seconds / 60:.1f} minutes" if seconds >= 90 else f"{max(1, round(seconds))} s"
    advice = f" To shorten it: {shorter}." if seconds >= _LONG else ""
    message = f"at most about {took} for {answers:,} more answers, by the pace of the first ones."
    tell("Cost", "dim", message + advice)


def open_endpoint(
    options: Mapping[str, Any], model: str | None, loading: Mapping[str, Any], **more: Any
) -> EndpointModel | None:
    """The model behind an address; None where no address is named.

    Args:
        options: values of `endpoint_options`.
        loading: values of `loading_options`, none of which means anything there.
        more: arguments of `EndpointModel`.

    Raises:
        RagMiddleError: it cannot be asked, it was said how to load it, or options of an endpoint
            were given without one.
    """
    if "endpoint" not in options:
        refuse_set(options, "is about a model behind an HTTP address: name it with --endpoint too.")
        return None
    refuse_set(loading, "says how to load a model, and that of --endpoint runs elsewhere.")
    from rag_middle.endpoint import EndpointModel

    return EndpointModel(model=model, **options, **more)


def devices_of(placement: Mapping[str, Any], count: int, backend: str) -> tuple[str, ...]:
    """The devices of workers, by the arguments that their model is loaded with."""
    from rag_middle.workers import worker_devices

    where = {name: placement.get(name) for name in ("device", "device_map")}
    return worker_devices(count, **where, cluster=backend == "ray")


def start_workers(
    make_work: MakeWork, *, backend: str, count: int, threads: int, devices: Sequence[str]
) -> Workers[Any, Any]:
    """Workers of this machine, or of the Ray cluster."""
    from rag_middle.workers import Processes, RayWorkers

    if backend == "ray":
        return RayWorkers(make_work, count, threads, gpus_each=1 if devices else 0)
    return Processes(make_work, count, threads, devices)


def command_line() -> str:
    """The command under way, to be shown in its report."""
    return shlex.join(["rag-middle", *sys.argv[1:]])
