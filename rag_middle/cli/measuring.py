"""What commands that measure a model share: its questions, loading it, a bar."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rag_middle.cli.console import console, quiet_progress_bars, tell
from rag_middle.cli.options import MODEL_PANEL, Panel, placed

if TYPE_CHECKING:
    from rag_middle.evaluation import Task
    from rag_middle.generation import RagMiddleModel

QUESTIONS_PANEL = Panel("Questions")
CALIBRATION_FOLDER = Path("rag-middle-calibration")
_NONE_RELEVANT = "none_relevant"
_LONG = 60  # seconds, from which on a run's options are named

ModelOption = Annotated[
    str | None,
    MODEL_PANEL.option(
        "--model",
        "-m",
        help="Directory, GGUF file or hub name. Default: SmolLM2-135M-Instruct.",
    ),
]

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
    from rag_middle.generation.loading import loading_errors
    from rag_middle.small_model import default_model

    chosen = default_model() if name is None else name
    quiet_progress_bars()
    with loading_errors(chosen):
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
    if options.get("distractors") == _NONE_RELEVANT and task is None:
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


def tell_time(seconds: float, answers: int, *, shorter: str = "") -> None:
    """Say how long a run will take, from the pace of its first answers.

    Args:
        seconds: at most.
        answers: still to come.
        shorter: what makes it less.
    """
    if seconds < 90:
        took = f"{max(1, round(seconds)):,} second{'' if round(seconds) <= 1 else 's'}"
    elif seconds < 5400:
        took = f"{seconds / 60:.0f} minutes"
    else:
        took = f"{seconds / 3600:.1f} hours"
    message = f"at most about {took} for {answers:,} more answers, by the pace of the first ones."
    if shorter and seconds >= _LONG:
        message += f" To shorten it: {shorter}."
    tell("Cost", "dim", message)


@contextmanager
def cpu_threads(threads: int | None) -> Iterator[None]:
    """PyTorch with so many CPU threads while the block runs.

    By default as many as PyTorch takes, but no more than the processors that this process may use
    and that are not busy: threads wait for the slowest of them at every operation, and one that
    shares its processor slows all. Where OMP_NUM_THREADS or MKL_NUM_THREADS says a number, PyTorch
    keeps to it.
    """
    import torch

    before = torch.get_num_threads()
    if threads is None:
        threads = before
        if not {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & os.environ.keys():
            threads = max(1, min(before, _processors() - _busy_processors()))
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _processors() -> int:
    """Those that this process may use: by its affinity, and by the quota of its control group."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not every system has it
        count = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        count = min(count, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):  # no control group, or no quota in it ("max")
        pass
    return max(1, count)


def _busy_processors() -> int:
    """How many the last minute's load took."""
    try:
        return round(os.getloadavg()[0])
    except (AttributeError, OSError):  # not every system says
        return 0


@contextmanager
def progress_bar(what: str, *, hidden: bool) -> Iterator[Callable[..., None]]:
    """A bar on standard error with the time left; nothing where that is no terminal.

    Yields:
        A function of the number done, the number of all, and perhaps what is done now.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console(stderr=True),
        transient=True,
        disable=hidden or not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task(what, total=None)

        def update(done: int, total: int, now: str = "") -> None:
            # What earlier runs have asked took no time of this one; another total is another run.
            if bar.tasks[task].total != total:
                bar.reset(task, total=total, completed=done)
            bar.update(task, completed=done, description=f"{what} {now}".rstrip())

        yield update


@contextmanager
def embedding_bar(*, hidden: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar for an embedder: it comes with the first texts, and goes with the last of them."""
    with ExitStack() as stack:
        update: Callable[..., None] | None = None

        def embedded(done: int, total: int) -> None:
            nonlocal update
            if total == 1:  # a question
                return
            if update is None:
                update = stack.enter_context(progress_bar("embedding", hidden=hidden))
            update(done, total)
            if done == total:
                stack.close()
                update = None

        yield embedded


def command_line() -> str:
    """The command under way, to be shown in its report."""
    return shlex.join(["rag-middle", *sys.argv[1:]])
