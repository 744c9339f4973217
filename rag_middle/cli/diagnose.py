"""``rag-middle diagnose``: is the middle lost here, and what helps?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from rag_middle.cli.console import (
    JsonOption,
    console,
    print_json,
    print_text,
    progress_bar,
    tell,
    warn,
)
from rag_middle.cli.measuring import (
    chosen_task,
    command_line,
    data_options,
    devices_of,
    load,
    open_endpoint,
    question_flag,
    start_workers,
    tell_time,
)
from rag_middle.cli.options import (
    BatchSizeOption,
    ModelOption,
    SeedOption,
    TemplateOption,
    WorkersPlace,
    command,
    endpoint_options,
    loading_options,
    model_flag,
    output_flag,
    placed,
)
from rag_middle.errors import ConfigError
from rag_middle.wording import counted

if TYPE_CHECKING:
    from rag_middle.documents import ContextPrompt
    from rag_middle.evaluation import AnsweringWorkers
    from rag_middle.methods import Method


def _varying(
    *,
    distractors: str | None = question_flag(
        None, help="Other documents: random, hard, or none_relevant (without the gold)."
    ),
    hops: int | None = question_flag(None, min=1, help="Documents that a question needs."),
    phrases: list[str] | None = question_flag(
        None,
        "--abstention",
        metavar="TEXT",
        hidden=True,
        help="Says that the model does not know, for none_relevant; repeatable.",
    ),
) -> None:
    """More arguments of `chosen_task`."""


def _measuring(
    *,
    limit: int = question_flag(100, min=1, help="Maximum number of questions."),
    positions: int = question_flag(3, min=2, help="Of the gold document, spread evenly."),
    grid: str | None = question_flag(
        None, metavar="N,N", help="Fewer documents too: 5,10,20, for --documents."
    ),
    orders: int = question_flag(0, min=0, help="Shuffled orders: how often answers flip."),
    changes: list[str] | None = question_flag(
        None,
        "--change",
        metavar="NAME,NAME",
        hidden=True,
        help="Controls of the unmodified model at the same positions: repeated (all documents "
        "twice), random_filler (the others' words shuffled), question_first (before the "
        "documents too), long_gold (the gold document followed by shuffled words).",
    ),
    scoring: Literal["generation", "likelihood"] = question_flag(
        "generation", "--score-by", help="Answers, or the likelihood of the right one."
    ),
    metric: str | None = question_flag(None, help="Which score decides. Default: the task's."),
    seed: SeedOption = 0,
    max_new_tokens: int | None = question_flag(
        None, min=1, help="Of an answer. Default: the task's."
    ),
    max_batch_size: BatchSizeOption = 8,
    template: TemplateOption = "auto",
) -> None:
    """Fields of `Measurement`, with `grid` as it is written."""


def _running(
    *,
    threads: int | None = model_flag(
        None, min=1, hidden=True, help="CPU threads, of all workers together."
    ),
    workers: int = model_flag(1, min=1, help="Processes that answer."),
    backend: WorkersPlace = "processes",
) -> None:
    """Where the model answers."""


@command(
    asked=data_options,
    varied=_varying,
    measured=_measuring,
    running=_running,
    loading=loading_options,
    remote=endpoint_options,
)
def diagnose(
    *,
    model: ModelOption = None,
    methods: list[str] | None = typer.Option(
        None, metavar="NAME,NAME", help="To try. Default: all that need no fitting."
    ),
    asked: dict[str, Any],
    varied: dict[str, Any],
    measured: dict[str, Any],
    running: dict[str, Any],
    loading: dict[str, Any],
    remote: dict[str, Any],
    out: Path = output_flag(
        Path("rag-middle-diagnosis"),
        help="Folder for report, records and profile. A run that was killed continues there.",
    ),
    refresh: int = output_flag(
        60, min=0, metavar="SECONDS", hidden=True, help="Between reports while asking; 0: none."
    ),
    as_json: JsonOption = False,
) -> None:
    """Measure a model by the position of the gold document, and say which method helps.

    Asks every question with its gold document, the one that holds the answer, at several
    positions, under every method. Recommends no method unless positions differ significantly and
    a method raises the worst of them significantly. With --hops, --task key_value_chains or
    --distractors none_relevant something else is varied, and all methods are compared on it.
    More options are in docs/cli.md.
    """
    backend, spreads = running["backend"], running["workers"] > 1 or running["backend"] == "ray"
    if measured["scoring"] == "likelihood" and "max_new_tokens" in measured:
        raise ConfigError("By likelihood nothing is generated: leave --max-new-tokens out.")
    asked |= varied
    fewer, most = _grid(measured.pop("grid", None), asked.get("documents"))
    asked |= {} if most is None else {"documents": most}
    names = None if methods is None else _split(methods)
    from rag_middle.methods import resolve_method

    for name in names or ():
        resolve_method(name)
    endpoint = open_endpoint(remote, model, loading)
    if endpoint is not None:
        if spreads:
            raise ConfigError(
                "The model behind --endpoint answers several requests at a time (--batch-size). "
                "Leave out --workers and --backend."
            )
        for name in ("none", *(names or ())):
            endpoint.checked_method(name)
        names = names or []
    from rag_middle.evaluation.tasks.base import require_gold_documents

    # Before PyTorch is imported: the data is where mistakes are.
    task = chosen_task(**asked)
    layout = task.layout(measured["positions"])
    if layout is None:
        require_gold_documents(task)
    # Refuses what there is too little of.
    items = task.items(measured["limit"], measured["seed"])
    import torch
    from joblib import cpu_count

    from rag_middle.evaluation import (
        Measurement,
        check_measurement,
        run,
        write_evaluation,
        write_report,
    )
    from rag_middle.evaluation import diagnose as run_diagnosis
    from rag_middle.evaluation.conclusions import notes_on_gold
    from rag_middle.evaluation.diagnosis import default_methods, profile_in_words
    from rag_middle.evaluation.findings import findings
    from rag_middle.evaluation.plots import new_figure
    from rag_middle.evaluation.report import InterimReport, show_diagnosis, show_grid
    from rag_middle.small_model import NAME
    from rag_middle.workers import torch_threads

    new_figure()  # without matplotlib there is no report: say so before an hour is spent
    changes: Any = tuple(_split(measured.pop("changes", ())))
    measurement = Measurement(**measured, grid=fewer, changes=changes, controls=True)
    check_measurement(task, names or (), measurement)
    tell("Data", "dim", f"{task.description}.")
    for note in notes_on_gold(items):
        warn(note)
    shown = {"command": command_line()}
    with (
        # As many as PyTorch takes, within the quota of a container.
        torch_threads(running.get("threads") or min(torch.get_num_threads(), cpu_count())),
        progress_bar("asking", hidden=as_json) as progress,
        ExitStack() as stack,
    ):
        if endpoint is None:
            tell("Model", "dim", f"loading {model or NAME}.")
        answering = endpoint or load(model, **loading)
        team = None
        if spreads:
            team = _team(answering, loading, running["workers"], backend)
            stack.callback(team.close)
        options: dict[str, Any] = {
            "records": out / "records.jsonl",
            "progress": progress,
            "estimated": partial(
                tell_time,
                shorter="a lower --limit, --documents or --positions, fewer --methods, or "
                "--score-by likelihood",
            ),
            "planned": None if endpoint is None else _tell_work,
            "workers": team,
        }
        if layout is None:
            diagnosis = run_diagnosis(
                answering,
                task,
                names,
                measurement,
                interim=InterimReport(out, seconds=refresh, **shown) if refresh else None,
                **options,
            )
        else:
            if names is None:
                names, left_out = default_methods(answering)
                for name, reason in left_out.items():
                    tell("Left out", "yellow", f"{name}: {reason}")
            results = run(answering, task, names, measurement, **options)
    if layout is None:
        page = write_report(diagnosis, out, **shown)
        data = diagnosis.to_dict()
    else:
        found = findings(results)
        page = write_evaluation(results, out, **shown)
        data = found.to_dict()
    if as_json:
        print_json({**data, "report": str(page)})
        return
    if layout is None:
        show_diagnosis(console(), diagnosis)
        tell("Use it", "cyan", f"--method profile:{out} ({profile_in_words(diagnosis.profile)}).")
    elif found.grid:
        show_grid(console(), found.grid, found.notes)
    print_text(f"{page}\n")


def _team(model: Any, loading: dict[str, Any], count: int, backend: str) -> AnsweringWorkers:
    import torch

    from rag_middle.evaluation import Answering
    from rag_middle.generation.sharing import origin

    placement = placed(loading)
    return start_workers(
        Answering(**origin(model), options=placement),
        backend=backend,
        count=count,
        threads=max(1, torch.get_num_threads() // count),
        devices=devices_of(placement, count, backend),
    )


def _tell_work(asking: Sequence[tuple[ContextPrompt, Method]], new_tokens: int) -> None:
    """Say how many requests an endpoint will get, and about how long they are."""
    from rag_middle.endpoint.model import arrangement

    sent = [arrangement(prompt, method) for prompt, method in asking]
    characters = sum(len(request.text) for request in sent)
    tell(
        "Cost",
        "dim",
        f"{counted(len(sent), 'request')}, about {characters // 4:,} prompt tokens (a token for "
        f"four characters), at most {len(sent) * new_tokens:,} new tokens.",
    )


def _grid(grid: str | None, documents: int | None) -> tuple[tuple[int, ...], int | None]:
    """The fewer numbers of documents of `--grid`, and the most."""
    if grid is None:
        return (), documents
    try:
        *fewer, most = sorted({int(number) for number in grid.split(",")})
    except ValueError:
        fewer, most = [], 0
    if not fewer or documents not in (None, most):
        raise ConfigError(
            f"--grid {grid}: give two or more different numbers of documents with commas between "
            "them, as in 5,10,20, and leave --documents out, which is the largest of them."
        )
    return tuple(fewer), most


def _split(values: Iterable[str]) -> list[str]:
    """The names of an option that takes several, with commas or by being repeated."""
    return [name.strip() for value in values for name in value.split(",") if name.strip()]
