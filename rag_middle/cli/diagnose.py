"""``rag-middle diagnose``: is the middle lost here, and what helps?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rag_middle.cli.console import JsonOption, console, print_json, print_text, tell, warn
from rag_middle.cli.measuring import (
    ASKED,
    CALIBRATION_FOLDER,
    QUESTIONS_PANEL,
    Backend,
    BackendOption,
    BatchSizeOption,
    SeedOption,
    chosen_task,
    command_line,
    devices_of,
    load,
    open_endpoint,
    progress_bar,
    start_workers,
    tell_time,
)
from rag_middle.cli.options import (
    ENDPOINT,
    LOADING,
    MODEL_PANEL,
    OUTPUT_PANEL,
    ModelOption,
    choice_type,
    command,
    flag,
    generation_flags,
    placed,
)
from rag_middle.errors import ConfigError, FileFormatError
from rag_middle.wording import counted

if TYPE_CHECKING:
    from rag_middle.documents import ContextPrompt
    from rag_middle.evaluation import AnsweringWorkers
    from rag_middle.methods import Method
    from rag_middle.profiles import Profile


_SCORE_BY = choice_type("ScoreBy", ("generation", "likelihood"))

_MEASUREMENT = (
    QUESTIONS_PANEL.flag("limit", int, 100, min=1, help="Maximum number of questions."),
    QUESTIONS_PANEL.flag(
        "positions",
        int,
        3,
        min=2,
        help="Positions of the gold document, or distances between several, spread evenly.",
    ),
    QUESTIONS_PANEL.flag(
        "grid",
        str | None,
        metavar="N,N",
        help="Measure with fewer documents too: 5,10,20. The rest of the report is about "
        "the largest number, which replaces --documents.",
    ),
    QUESTIONS_PANEL.flag(
        "orders",
        int,
        0,
        min=0,
        help="Shuffled orders, for the rate at which answers flip; 0: none.",
    ),
    QUESTIONS_PANEL.flag(
        "changes",
        list[str] | None,
        names=("--change",),
        metavar="NAME,NAME",
        help="Controls of the unmodified model at the same positions: repeated (all "
        "documents twice), random_filler (the other documents' words shuffled), question_first "
        "(the question before the documents too), long_gold (the gold document followed by the "
        "shuffled words of three others).",
    ),
    QUESTIONS_PANEL.flag(
        "scoring",
        _SCORE_BY,
        _SCORE_BY("generation"),
        names=("--score-by",),
        help="Compare generated answers, or measure the log-likelihood of the right one, "
        "which is cheaper.",
    ),
    QUESTIONS_PANEL.flag(
        "metric",
        str | None,
        help="Which score decides. Default: the task's first; greedy_match for likelihood.",
    ),
    flag("seed", SeedOption, 0),
    *generation_flags(["template"]),
    QUESTIONS_PANEL.flag(
        "max_new_tokens",
        int | None,
        min=1,
        help="Maximum new tokens of an answer. Default: the task's.",
    ),
    flag("max_batch_size", BatchSizeOption, 8),
)
"""Fields of `Measurement`, with `grid` as it is written."""

_RUNNING = (
    MODEL_PANEL.flag(
        "threads",
        int | None,
        min=1,
        help="CPU threads, of all workers together. Default: OMP_NUM_THREADS, or as many "
        "as there are processors.",
    ),
    MODEL_PANEL.flag(
        "workers",
        int,
        1,
        min=1,
        help="Processes that answer, each with the model, and on GPUs each with a GPU of its own.",
    ),
    flag("backend", BackendOption, Backend.processes),
)


@command(
    asked=ASKED,
    measured=_MEASUREMENT,
    running=_RUNNING,
    loading=LOADING,
    remote=ENDPOINT,
)
def diagnose(
    *,
    model: ModelOption = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,NAME",
            help="Methods to try, as for --method elsewhere; repeatable. Default: those that need "
            "no calibration and that the model can take; at an endpoint none. none: only measure.",
        ),
    ] = None,
    asked: dict[str, Any],
    measured: dict[str, Any],
    running: dict[str, Any],
    loading: dict[str, Any],
    remote: dict[str, Any],
    out: Annotated[
        Path,
        OUTPUT_PANEL.option(
            help="Folder for report.html, report.png, report.json, records.jsonl and profile.json: "
            "--method profile:FOLDER uses what is recommended. A run that was killed continues "
            "from its records."
        ),
    ] = Path("rag-middle-diagnosis"),
    refresh: Annotated[
        int,
        OUTPUT_PANEL.option(
            min=0,
            metavar="SECONDS",
            help="While asking, rewrite report.html so often with the questions answered so far; "
            "an open page loads itself again. 0: only at the end.",
        ),
    ] = 60,
    as_json: JsonOption = False,
) -> None:
    """Measure a model by the position of the gold document, and say which method helps.

    Asks every question with its gold document, the one that holds the answer, at several
    positions, under every method. Recommends no method unless positions differ significantly and
    a method raises the worst of them significantly. With --hops, --task key_value_chains or
    --distractors none_relevant something else is varied, and all methods are compared on it.
    """
    backend, spreads = running["backend"], running["workers"] > 1 or running["backend"] == "ray"
    if measured["scoring"] == "likelihood" and "max_new_tokens" in measured:
        raise ConfigError("By likelihood nothing is generated: leave --max-new-tokens out.")
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
    items, repeated = task.distinct_items(measured["limit"], measured["seed"])
    import torch
    from joblib import cpu_count

    from rag_middle.evaluation import (
        Measurement,
        check_measurement,
        grid_of,
        run,
        write_evaluation,
        write_report,
    )
    from rag_middle.evaluation import diagnose as run_diagnosis
    from rag_middle.evaluation.conclusions import notes_on_gold
    from rag_middle.evaluation.diagnosis import default_methods, profile_in_words
    from rag_middle.evaluation.plots import new_figure
    from rag_middle.evaluation.report import InterimReport, run_notes
    from rag_middle.evaluation.terminal import show_diagnosis, show_grid
    from rag_middle.evaluation.wrong_answers import repeated_note
    from rag_middle.small_model import NAME
    from rag_middle.workers import torch_threads

    new_figure()  # without matplotlib there is no report: say so before an hour is spent
    changes: Any = tuple(_split(measured.pop("changes", ())))
    measurement = Measurement(**measured, grid=fewer, changes=changes, controls=True)
    check_measurement(task, names or (), measurement)
    tell("Data", "dim", f"{task.description}.")
    for note in ([repeated_note(repeated)] if repeated else []) + list(notes_on_gold(items)):
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
                calibrated=_calibrated(),
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
        files = write_report(diagnosis, out, **shown)
        data = diagnosis.to_dict()
    else:
        grid, notes = grid_of(results), run_notes(results)
        files = write_evaluation(results, out, **shown)
        data = {**(grid.to_dict() if grid else {}), "notes": notes}
    if as_json:
        print_json({**data, "report": str(files.html)})
        return
    if layout is None:
        show_diagnosis(console(), diagnosis)
        tell("Use it", "cyan", f"--method profile:{out} ({profile_in_words(diagnosis.profile)}).")
    elif grid is not None:
        show_grid(console(), grid, notes)
    print_text(f"{files.html}\n")


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
    from rag_middle.endpoint.model import arrangements

    sent = [request for prompt, method in asking for request in arrangements(prompt, method)]
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


def _calibrated() -> dict[str, Profile]:
    """Profiles where ``rag-middle calibrate`` writes them if it is not told otherwise."""
    from rag_middle.profiles import read_profile

    profiles = {}
    for path in sorted(CALIBRATION_FOLDER.glob("*.json")):
        with suppress(FileFormatError):  # another file
            profiles[str(path)] = read_profile(path)
    return profiles


def _split(values: Iterable[str]) -> list[str]:
    """The names of an option that takes several, with commas or by being repeated."""
    return [name.strip() for value in values for name in value.split(",") if name.strip()]
