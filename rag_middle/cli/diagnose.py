"""``rag-middle diagnose``: is the middle lost here, and what helps?"""

from __future__ import annotations

from contextlib import ExitStack, closing, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rag_middle.cli.checks import check_method, check_output_folder, check_readable
from rag_middle.cli.console import DebugOption, JsonOption, console, print_json, reporting, tell
from rag_middle.cli.endpoint import (
    ENDPOINT,
    is_served_reader,
    open_endpoint,
    tell_work,
)
from rag_middle.cli.flags import flags_of
from rag_middle.cli.measuring import (
    CALIBRATION_FOLDER,
    QUESTIONS_PANEL,
    BatchSizeOption,
    DataOption,
    DistractorsOption,
    DocumentsOption,
    ModelOption,
    TaskOption,
    chosen_task,
    command_line,
    cpu_threads,
    load,
    progress_bar,
    tell_time,
)
from rag_middle.cli.options import (
    LOADING,
    MODEL_PANEL,
    OUTPUT_PANEL,
    generation_flags,
    placed,
    with_flags,
)
from rag_middle.cli.spreading import Backend, check_backend, start_workers
from rag_middle.errors import EvaluationDataError, ProfileFormatError
from rag_middle.wording import counted

if TYPE_CHECKING:
    from rag_middle.evaluation import AnsweringWorkers, Diagnosis
    from rag_middle.profiles import Profile

__all__ = ["ScoreBy", "diagnose"]


class ScoreBy(StrEnum):
    """generation: compare what the model writes; likelihood: log-likelihood of the answer."""

    generation = "generation"
    likelihood = "likelihood"


def _several_or_none(orders: int) -> int:
    if orders == 1:
        raise typer.BadParameter("1 leaves nothing to compare: use 0, or 2 and more.")
    return orders


@with_flags(shape=generation_flags(["template"]), loading=LOADING, remote=ENDPOINT)
def diagnose(
    *,
    model: ModelOption = None,
    data: DataOption = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,NAME",
            help="Methods to try, as for --method elsewhere; repeatable. Default: those that need "
            "no calibration and that the model can take; at an endpoint none. none: only measure.",
            show_default=False,
        ),
    ] = None,
    task: TaskOption = None,
    documents: DocumentsOption = None,
    distractors: DistractorsOption = None,
    hops: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Questions that need so many documents (2 or 3 invented ones; with --data, those "
            "with so many gold documents), by their distance and order. For --task "
            "key_value_chains: keys of the longest chain.",
            show_default=False,
            rich_help_panel=QUESTIONS_PANEL,
        ),
    ] = None,
    abstention: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="Counts as saying that the model does not know, for --distractors none_relevant; "
            "repeatable. Default: usual phrases.",
            show_default=False,
            rich_help_panel=QUESTIONS_PANEL,
        ),
    ] = None,
    limit: Annotated[
        int,
        QUESTIONS_PANEL.option(min=1, help="Maximum number of questions."),
    ] = 100,
    positions: Annotated[
        int,
        QUESTIONS_PANEL.option(
            min=2,
            help="Positions of the gold document, or distances between several, spread evenly.",
        ),
    ] = 5,
    grid: Annotated[
        str | None,
        QUESTIONS_PANEL.option(
            metavar="N,N",
            help="Measure with fewer documents too: 5,10,20. The rest of the report is about the "
            "largest number, which stands in place of --documents.",
            show_default=False,
        ),
    ] = None,
    orders: Annotated[
        int,
        QUESTIONS_PANEL.option(
            min=0,
            callback=_several_or_none,
            help="Shuffled orders, for the rate at which answers flip; 0: none.",
        ),
    ] = 3,
    change: Annotated[
        list[str] | None,
        QUESTIONS_PANEL.option(
            metavar="NAME,NAME",
            help="Controls of the unmodified model at the same positions: repeated (all documents "
            "twice), filler (the other documents' words shuffled), question_first (the question "
            "before the documents too), long_gold (the gold document followed by the shuffled "
            "words of three others).",
            show_default=False,
        ),
    ] = None,
    stop_early: Annotated[
        bool,
        QUESTIONS_PANEL.option(
            "--stop-early",
            help="Look at the answers from time to time, and ask no more questions once those left "
            "could hardly change what is recommended.",
        ),
    ] = False,
    score_by: Annotated[
        ScoreBy,
        QUESTIONS_PANEL.option(
            help="Compare generated answers, or measure the log-likelihood of the right one, which "
            "is cheaper."
        ),
    ] = ScoreBy.generation,
    metric: Annotated[
        str | None,
        QUESTIONS_PANEL.option(
            help="Which score decides. Default: the task's first; greedy_match for likelihood.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int,
        QUESTIONS_PANEL.option(min=0, help="Random seed."),
    ] = 0,
    shape: dict[str, Any],
    max_new_tokens: Annotated[
        int | None,
        QUESTIONS_PANEL.option(
            min=1, help="Maximum new tokens of an answer. Default: the task's.", show_default=False
        ),
    ] = None,
    batch_size: BatchSizeOption = 8,
    threads: Annotated[
        int | None,
        MODEL_PANEL.option(
            min=1,
            help="CPU threads, of all workers together. Default: OMP_NUM_THREADS, or as many as "
            "there are processors that are not busy.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[
        int,
        MODEL_PANEL.option(
            min=1,
            help="Processes that answer, each with the model, and on GPUs each with a GPU of its "
            "own.",
        ),
    ] = 1,
    backend: Annotated[
        Backend,
        MODEL_PANEL.option(
            help="Where several workers run; ray needs `pip install 'rag-middle[ray]'`."
        ),
    ] = Backend.processes,
    loading: dict[str, Any],
    remote: dict[str, Any],
    out: Annotated[
        Path,
        OUTPUT_PANEL.option(
            help="Folder for report.html, report.png, report.json and records.jsonl. A run that "
            "was killed continues from its records."
        ),
    ] = Path("rag-middle-diagnosis"),
    refresh: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="While asking, rewrite report.html so often with the questions answered so far; "
            "an open page loads itself again. 0: only at the end.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = 60,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure a model by the position of the gold document, and say which method helps.

    Asks every question with its gold document, the one that holds the answer, at several
    positions, under every method. Recommends no method unless positions differ significantly and
    a method raises the worst of them significantly. With --hops, --task key_value_chains or
    --distractors none_relevant something else is varied, and all methods are compared on it.
    """
    named = {
        "max_batch_size": "--batch-size",
        "scoring": "--score-by",
        "keys": "--documents",
        "changes": "--change",
        "phrases": "--abstention",
    }
    flags = flags_of(diagnose, **named)
    with reporting(as_json=as_json, debug=debug, flags=flags):
        check_output_folder(out)
        check_backend(backend)
        spreads = workers > 1 or backend is Backend.ray
        fewer, documents = _grid(grid, documents)
        names = _split(methods)
        for name in names or ():
            check_method(name)
        if data is not None:
            check_readable(data, "data file", "a file of JSON lines", EvaluationDataError)
        endpoint = open_endpoint(remote, model, loading)
        if endpoint is not None:
            if spreads:
                raise typer.BadParameter(
                    "the model behind --endpoint answers several requests at a time: see "
                    "--concurrency. Leave out --workers and --backend.",
                    param_hint="--workers",
                )
            for name in ("none", *(names or ())):
                endpoint.checked_method(name)
            names = list(endpoint.offered_methods) if names is None else names
        from rag_middle.evaluation.tasks.base import require_gold_documents

        bundled = model is None if endpoint is None else is_served_reader(endpoint.name)
        # Before PyTorch is imported: the data is where mistakes are.
        questions = chosen_task(
            task,
            data,
            documents,
            bundled=bundled,
            distractors=distractors,
            hops=hops,
            phrases=abstention,
        )
        layout = questions.layout(positions)
        if layout is None:
            require_gold_documents(questions)
        elif stop_early:
            raise typer.BadParameter(
                "it is the difference between positions that decides, and this task has none: "
                "leave it out.",
                param_hint="--stop-early",
            )
        items = questions.items(limit, seed)  # refuses what there is too little of
        from rag_middle.evaluation import (
            Measurement,
            check_measurement,
            factors_of,
            run,
            write_evaluation,
            write_report,
        )
        from rag_middle.evaluation import diagnose as run_diagnosis
        from rag_middle.evaluation.charts import require_library
        from rag_middle.evaluation.conclusions import MIN_QUESTIONS, note_on_gold
        from rag_middle.evaluation.diagnosis import default_methods
        from rag_middle.evaluation.plots import new_figure
        from rag_middle.evaluation.report import InterimReport
        from rag_middle.evaluation.stopping import looks
        from rag_middle.evaluation.terminal import show_diagnosis, show_factors

        # Without matplotlib and vl-convert there is no report: say so before an hour is spent.
        new_figure()
        require_library()
        measurement = Measurement(
            limit=limit,
            positions=positions,
            grid=fewer,
            orders=orders,
            controls=True,
            changes=tuple(_split(change) or ()),  # type: ignore[arg-type] # it checks them
            scoring=score_by.value,
            metric=metric,
            seed=seed,
            max_new_tokens=max_new_tokens,
            max_batch_size=batch_size,
            **shape,
        )
        check_measurement(questions, names or (), measurement)
        tell("Data", "dim", f"{questions.description}.")
        if note := note_on_gold(items):
            tell("Warning", "yellow", note)
        if stop_early and len(looks(len(items))) == 1:
            tell(
                "Note",
                "yellow",
                f"--stop-early has no effect on {counted(len(items), 'question')}: it first looks "
                f"after {MIN_QUESTIONS}, if more than a quarter of all are still to be asked.",
            )
        with (
            cpu_threads(threads),
            progress_bar("asking", hidden=as_json) as progress,
            ExitStack() as stack,
        ):
            asked = endpoint or load(model, **loading)
            team = None
            if spreads:
                team = stack.enter_context(closing(_team(asked, loading, workers, backend)))
            options: dict[str, Any] = {
                "records": out / "records.jsonl",
                "progress": progress,
                "estimated": tell_time,
                "planned": None if endpoint is None else tell_work(endpoint),
                "workers": team,
            }
            if layout is None:
                diagnosis: Diagnosis | None = run_diagnosis(
                    asked,
                    questions,
                    names,
                    measurement,
                    calibrated=_calibrated(),
                    stop_early=stop_early,
                    interim=InterimReport(out, seconds=refresh, command=command_line())
                    if refresh
                    else None,
                    **options,
                )
            else:
                if names is None:
                    names, left_out = default_methods(asked)
                    for name, reason in left_out.items():
                        tell("Left out", "yellow", f"{name}: {reason}")
                diagnosis, results = None, run(asked, questions, names, measurement, **options)
        if diagnosis is None:
            files = write_evaluation(results, out, command=command_line())
            factors = factors_of(results)
            assert factors is not None  # there is a layout
            if as_json:
                print_json({**factors.to_dict(), "report": str(files.html)})
                return
            show_factors(console(), factors)
        else:
            files = write_report(diagnosis, out, command=command_line())
            if as_json:
                print_json({**diagnosis.to_dict(), "report": str(files.html)})
                return
            show_diagnosis(console(), diagnosis)
        print(files.html)


def _team(model: Any, loading: dict[str, Any], count: int, backend: Backend) -> AnsweringWorkers:
    import torch

    from rag_middle.evaluation import Answering
    from rag_middle.workers import worker_devices

    placement = placed(loading)
    devices = worker_devices(
        count,
        device=placement.get("device"),
        device_map=placement.get("device_map"),
        cluster=backend is Backend.ray,
    )
    return start_workers(
        Answering(str(model.model.config._name_or_path), placement),
        backend=backend,
        count=count,
        threads=max(1, torch.get_num_threads() // count),
        devices=devices,
    )


def _grid(grid: str | None, documents: int | None) -> tuple[tuple[int, ...], int | None]:
    """The fewer numbers of documents of `--grid`, and the most."""
    if grid is None:
        return (), documents
    try:
        *fewer, most = sorted({int(number) for number in grid.split(",")})
    except ValueError:
        fewer, most = [], 0
    if not fewer or fewer[0] < 2:
        raise typer.BadParameter(
            f"{grid!r} should be two or more different numbers of documents, all at least 2, with "
            "commas between them: 5,10,20.",
            param_hint="--grid",
        )
    if documents not in (None, most):
        raise typer.BadParameter(
            f"--documents {documents} is not the largest number of --grid {grid}: leave it out.",
            param_hint="--grid",
        )
    return tuple(fewer), most


def _calibrated() -> dict[str, Profile]:
    """Profiles where ``rag-middle calibrate`` writes them if it is not told otherwise."""
    from rag_middle.profiles import read_profile

    profiles = {}
    for path in sorted(CALIBRATION_FOLDER.glob("*.json")):
        with suppress(ProfileFormatError):  # another file
            profiles[str(path)] = read_profile(path)
    return profiles


def _split(values: list[str] | None) -> list[str] | None:
    """The names of an option that takes several, with commas or by being repeated."""
    if values is None:
        return None
    return [name.strip() for value in values for name in value.split(",") if name.strip()]
