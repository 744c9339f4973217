"""``rag-middle diagnose``: is the middle lost here, and what helps?"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rag_middle.cli.checks import check_output_folder, check_profiles, check_readable
from rag_middle.cli.console import DebugOption, JsonOption, console, print_json, reporting
from rag_middle.cli.flags import flags_of
from rag_middle.cli.options import (
    MODEL_PANEL,
    OUTPUT_PANEL,
    AttnImplementationOption,
    ContextWindowOption,
    DeviceOption,
    Dtype,
    DtypeOption,
    RevisionOption,
    Template,
    TemplateOption,
    TrustRemoteCodeOption,
)
from rag_middle.errors import EvaluationDataError

if TYPE_CHECKING:
    from rag_middle.evaluation import Task
    from rag_middle.generation import RagMiddleModel

__all__ = ["ScoreBy", "chosen_task", "command_line", "diagnose", "load", "progress_bar"]

QUESTIONS_PANEL = "Questions"
_READER_DOCUMENTS = 20


class ScoreBy(StrEnum):
    """generation: compare what the model writes; likelihood: log-likelihood of the answer."""

    generation = "generation"
    likelihood = "likelihood"


def _several_or_none(orders: int) -> int:
    if orders == 1:
        raise typer.BadParameter("1 leaves nothing to compare: use 0, or 2 and more.")
    return orders


def diagnose(
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="Directory or hub name. Default: the bundled reader.",
            show_default=False,
            rich_help_panel=MODEL_PANEL,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Questions with the document that answers them, as JSON lines. Default: questions "
            "about invented documents.",
            show_default=False,
            rich_help_panel=QUESTIONS_PANEL,
        ),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,NAME",
            help="Methods to try, as for --method elsewhere; repeatable. Default: those that need "
            "nothing fitted and that the model can take. none: only measure.",
            show_default=False,
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="What the questions are. Default: what --data looks like.",
            show_default=False,
            rich_help_panel=QUESTIONS_PANEL,
        ),
    ] = None,
    documents: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Documents in a prompt. Default: what the data or the task has; 20 for the "
            "bundled reader.",
            show_default=False,
            rich_help_panel=QUESTIONS_PANEL,
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, help="Most questions.", rich_help_panel=QUESTIONS_PANEL)
    ] = 100,
    positions: Annotated[
        int,
        typer.Option(
            min=2,
            help="Positions of the gold document, spread evenly.",
            rich_help_panel=QUESTIONS_PANEL,
        ),
    ] = 5,
    orders: Annotated[
        int,
        typer.Option(
            min=0,
            callback=_several_or_none,
            help="Shuffled orders, for the rate at which answers flip; 0: none.",
            rich_help_panel=QUESTIONS_PANEL,
        ),
    ] = 3,
    score_by: Annotated[
        ScoreBy,
        typer.Option(
            help="Compare generated answers, or measure the log-likelihood of the right one, which "
            "is cheaper.",
            rich_help_panel=QUESTIONS_PANEL,
        ),
    ] = ScoreBy.generation,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Which score decides. Default: the task's first; greedy_match for likelihood.",
            show_default=False,
            rich_help_panel=QUESTIONS_PANEL,
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(min=0, help="Of whatever is drawn.", rich_help_panel=QUESTIONS_PANEL),
    ] = 0,
    template: TemplateOption = Template.auto,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Most tokens of an answer. Default: the task's.",
            show_default=False,
            rich_help_panel=QUESTIONS_PANEL,
        ),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Prompts per forward pass.", rich_help_panel=MODEL_PANEL)
    ] = 8,
    context_window: ContextWindowOption = None,
    dtype: DtypeOption = Dtype.auto,
    device: DeviceOption = None,
    attn_implementation: AttnImplementationOption = None,
    revision: RevisionOption = None,
    trust_remote_code: TrustRemoteCodeOption = False,
    out: Annotated[
        Path,
        typer.Option(
            help="Folder for report.html, report.png, report.json and records.jsonl. A run that "
            "was killed continues from its records.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = Path("rag-middle-diagnosis"),
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure a model by the position of the gold document, and say which method helps.

    Asks every question with its gold document, the one that holds the answer, at several
    positions, under every method. Recommends no method unless positions differ significantly and
    a method raises the worst of them significantly.
    """
    flags = flags_of(diagnose, max_batch_size="--batch-size", scoring="--score-by", data="--data")
    with reporting(as_json=as_json, debug=debug, flags=flags):
        check_output_folder(out)
        check_profiles(methods or ())
        if data is not None:
            check_readable(data, "data file", "a file of JSON lines", EvaluationDataError)
        from rag_middle.evaluation import Measurement, check_measurement, write_report
        from rag_middle.evaluation import diagnose as run_diagnosis
        from rag_middle.evaluation.diagnosis import require_gold_documents
        from rag_middle.evaluation.plots import new_figure
        from rag_middle.evaluation.terminal import show_diagnosis

        new_figure()  # without matplotlib there is no report: say so before an hour is spent
        names = _method_names(methods)
        measurement = Measurement(
            limit=limit,
            positions=positions,
            orders=orders,
            controls=True,
            scoring=score_by.value,
            metric=metric,
            seed=seed,
            max_new_tokens=max_new_tokens,
            max_batch_size=batch_size,
            template=template.value,
        )
        questions = chosen_task(task, data, documents, bundled=model is None)
        require_gold_documents(questions)
        check_measurement(questions, names or (), measurement)
        loaded = load(
            model,
            context_window=context_window,
            dtype=dtype.value,
            device=device,
            attn_implementation=attn_implementation,
            revision=revision,
            trust_remote_code=trust_remote_code,
        )
        with progress_bar("asking", hidden=as_json) as progress:
            diagnosis = run_diagnosis(
                loaded,
                questions,
                names,
                measurement,
                records=out / "records.jsonl",
                progress=progress,
            )
        files = write_report(diagnosis, out, command=command_line())
        if as_json:
            print_json({**diagnosis.to_dict(), "report": str(files.html)})
        else:
            show_diagnosis(console(), diagnosis)
            print(files.html)


def load(name: str | None, *, device: str | None, **options: Any) -> RagMiddleModel:
    """The model of that name, or the bundled reader."""
    from rag_middle.cli.answers import load_model

    if name is None:
        from rag_middle.reader import reader_path

        name = str(reader_path())
    return load_model(
        name,
        device=None if device == "auto" else device,
        device_map=device if device == "auto" else None,
        **options,
    )


def _method_names(values: list[str] | None) -> list[str] | None:
    if values is None:
        return None
    return [name.strip() for value in values for name in value.split(",") if name.strip()]


def chosen_task(
    name: str | None, data: Path | None, documents: int | None, *, bundled: bool
) -> Task:
    """The task of that name or data; about invented documents where neither is given."""
    from rag_middle.evaluation.tasks import make_task, task_for_file

    options: dict[str, Any] = {} if documents is None else {"documents": documents}
    if data is not None:
        if name is None:
            return task_for_file(data, **options)
        return make_task(name, {"data": data, **options})
    name = name or "invented_documents"
    if name == "key_value_retrieval" and documents is not None:
        options = {"keys": documents}
    if name == "invented_documents" and bundled:
        options["cited"] = True  # the bundled reader names the document before the answer
        # With fewer its accuracy is almost the same at every position: nothing to measure.
        options.setdefault("documents", _READER_DOCUMENTS)
    return make_task(name, options)


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


def command_line() -> str:
    """The command under way, to be shown in its report."""
    return shlex.join(["rag-middle", *sys.argv[1:]])
