"""What commands that measure a model share: its questions, loading it, workers, a bar."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rag_middle.cli.console import console, quiet_progress_bars, tell
from rag_middle.cli.options import MODEL_PANEL, Panel, placed, refuse_set

if TYPE_CHECKING:
    from rag_middle.endpoint import EndpointModel
    from rag_middle.evaluation import Task
    from rag_middle.generation import RagMiddleModel
    from rag_middle.workers import MakeWork, Workers

QUESTIONS_PANEL = Panel("Questions")
CALIBRATION_FOLDER = Path("rag-middle-calibration")
_LONG = 60  # seconds, from which on a run's options are named

DATA = (
    QUESTIONS_PANEL.flag(
        "data",
        Path | None,
        help="Questions with their gold documents, as JSON lines, or a published "
        "benchmark's file. Default: 600 questions of NaturalQuestions, which come with rag-middle.",
    ),
    QUESTIONS_PANEL.flag(
        "task", str | None, help="What the questions are. Default: what --data looks like."
    ),
    QUESTIONS_PANEL.flag(
        "documents",
        int | None,
        min=2,
        help="Documents in a prompt. Default: what the data or the task has; 10 without --data.",
    ),
)
"""Arguments of `chosen_task` that every command with questions takes."""

ASKED = (
    *DATA,
    QUESTIONS_PANEL.flag(
        "distractors",
        str | None,
        help="What the other documents are: random, or hard (those most like the question). "
        "none_relevant: every question is asked without its gold document too, and then the model "
        "must say that it does not know.",
    ),
    QUESTIONS_PANEL.flag(
        "hops",
        int | None,
        min=1,
        help="Questions that need so many documents (without --data 2 or 3 generated ones), by "
        "their distance and order. For --task key_value_chains: keys of the longest chain.",
    ),
    QUESTIONS_PANEL.flag(
        "phrases",
        list[str] | None,
        names=("--abstention",),
        metavar="TEXT",
        help="Counts as saying that the model does not know, for --distractors "
        "none_relevant; repeatable. Default: usual phrases.",
    ),
)
"""Which questions are asked; arguments of `chosen_task`."""


class Backend(StrEnum):
    """processes: of this machine; ray: a Ray cluster."""

    processes = "processes"
    ray = "ray"


BackendOption = Annotated[
    Backend,
    typer.Option(help="Where several workers run; ray needs `pip install 'rag-middle[ray]'`."),
]
SeedOption = Annotated[int, typer.Option(min=0, help="Random seed.")]
BatchSizeOption = Annotated[
    int,
    MODEL_PANEL.option(
        "--batch-size", min=1, help="Prompts per forward pass; at an endpoint requests at a time."
    ),
]


def load(name: str | None, **options: Any) -> RagMiddleModel:
    """The model of that name, or the default one, without progress bars.

    Args:
        name: directory, GGUF file or hub name; None for the default model.
        options: arguments of ``RagMiddleModel.from_pretrained``; device as on the command line.

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
        options: more options of tasks, as `ASKED` has them; of `distractors`, ``none_relevant``
            stands for the task ``abstention``.
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
    if data is not None:
        if task is None:
            return task_for_file(data, **options)
        return make_task(task, {"data": data, **options})
    if task is None:
        return shipped_questions(**options)
    if task in ("key_value_retrieval", "key_value_chains") and "documents" in options:
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
        options: values of `ENDPOINT`.
        loading: values of `LOADING`, none of which means anything there.
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
    return worker_devices(count, **where, cluster=backend == Backend.ray)


def start_workers(
    make_work: MakeWork, *, backend: str, count: int, threads: int, devices: Sequence[str]
) -> Workers[Any, Any]:
    """Workers of this machine, or of the Ray cluster."""
    from rag_middle.workers import Processes, RayWorkers

    if backend == Backend.ray:
        return RayWorkers(make_work, count, threads, gpus_each=1 if devices else 0)
    return Processes(make_work, count, threads, devices)


@contextmanager
def progress_bar(what: str, *, hidden: bool) -> Iterator[Callable[..., None]]:
    """A bar on standard error with the time left; nothing where that is no terminal.

    Yields:
        A function of the number done, the number of all, and perhaps what is done now.
    """
    from rich.markup import escape
    from rich.progress import MofNCompleteColumn, Progress

    with Progress(
        *Progress.get_default_columns(),
        MofNCompleteColumn(),
        console=console(stderr=True),
        transient=True,
        disable=hidden or not sys.stderr.isatty(),
    ) as bar:
        task = bar.add_task(what, total=None)

        def update(done: int, total: int, now: str = "") -> None:
            shown = escape(f"{what} {now}".rstrip())
            bar.update(task, total=total, completed=done, description=shown)

        yield update


def command_line() -> str:
    """The command under way, to be shown in its report."""
    return shlex.join(["rag-middle", *sys.argv[1:]])
