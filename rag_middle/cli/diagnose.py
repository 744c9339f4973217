"""``rag-middle diagnose``: is the middle lost here, and what helps?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rag_middle import evaluation
from rag_middle.cli import console
from rag_middle.cli import options as opt
from rag_middle.cli.measuring import Questions, chosen_task, question_flag, start_workers
from rag_middle.cli.models import Endpoint, Loading, load, open_endpoint
from rag_middle.errors import ConfigError
from rag_middle.wording import counted

if TYPE_CHECKING:
    from rag_middle.documents import ContextPrompt
    from rag_middle.methods import Method


def _measurement(
    *,
    limit: int = question_flag(100, min=1, help="Maximum number of questions."),
    positions: int = question_flag(3, min=2, help="Of the gold document, spread evenly."),
    orders: int = question_flag(0, min=0, help="Shuffled orders: how often answers flip."),
    scoring: Literal["generation", "likelihood"] = question_flag(
        "generation",
        "--score-by",
        help="Answers, or the likelihood of the correct one (to see it: --metric log_likelihood).",
    ),
    metric: str | None = question_flag(None, help="Which score decides. Default: the task's."),
    seed: opt.Seed = 0,
    max_new_tokens: int | None = question_flag(
        None, min=1, help="Of an answer. Default: the task's."
    ),
    max_batch_size: opt.BatchSize = 8,
    template: opt.Template = "auto",
) -> None:
    """Fields of `Measurement`."""


@opt.command
def diagnose(
    *,
    model: opt.Model = None,
    methods: list[str] | None = typer.Option(
        None, "--methods", "--method", metavar="NAME,NAME", help="Default: pine, rotor, presets."
    ),
    asked: Questions,
    distractors: Literal["random", "hard"] | None = question_flag(
        None, help="Other documents: any, or those most like the question."
    ),
    measured: Annotated[dict[str, Any], opt.group(_measurement)],
    workers: int = opt.model_flag(1, min=1, help="Processes that answer."),
    backend: opt.Backend = "processes",
    loading: Loading,
    remote: Endpoint,
    out: Path = opt.output_flag(
        Path("rag-middle-diagnosis"),
        help="Folder for report, records and profile. A run that was killed continues there.",
    ),
    as_json: opt.Json = False,
) -> None:
    """Measure a model by the position of the gold document, and say which method helps.

    Asks every question with its gold document, the one that holds the answer, at several
    positions, under every method. Recommends no method unless positions differ significantly and
    a method raises the worst of them significantly. More options are in docs/cli.md.
    """
    if measured["scoring"] == "likelihood" and "max_new_tokens" in measured:
        raise ConfigError("By likelihood nothing is generated: leave --max-new-tokens out.")
    if distractors is not None:
        asked["distractors"] = distractors
    names = _split(methods) or None
    spreads = workers > 1 or backend == "ray"
    endpoint = open_endpoint(remote, model, loading)
    if endpoint is not None and spreads:
        raise ConfigError("Leave out --workers and --backend: --endpoint has --batch-size.")
    from rag_middle.evaluation.tasks.base import require_gold_documents

    # Before PyTorch is imported: the data is where mistakes are.
    task = chosen_task(**asked)
    require_gold_documents(task)
    items = task.items(measured["limit"], measured["seed"])

    import torch

    from rag_middle.evaluation import conclusions, plots, report
    from rag_middle.evaluation.diagnosis import profile_in_words
    from rag_middle.small_model import NAME

    plots.new_figure()  # without matplotlib there is no report: say so before an hour is spent
    measurement = evaluation.Measurement(**measured, controls=True)
    for labelled in evaluation.check_measurement(task, names or (), measurement):
        if endpoint is not None:
            endpoint.checked_method(labelled.method)
    console.tell("Data", f"{task.description}: {counted(len(items), 'question')} asked.")
    for note in conclusions.notes_on_gold(items):
        console.warn(note)
    if len(items) < conclusions.MIN_QUESTIONS:
        console.warn(conclusions.too_few(len(items)))
    with console.progress_bar("asking", hidden=as_json) as progress, ExitStack() as stack:
        if endpoint is None:
            console.tell("Model", f"loading {model or NAME}.")
        answering: Any = endpoint or load(model, loading)
        options: dict[str, Any] = {
            "records": out / "records.jsonl",
            "progress": progress,
            "estimated": partial(_tell_time, measurement.scoring, out),
            "planned": None if endpoint is None else _tell_work,
        }
        if spreads:
            threads = loading.get("threads", max(1, torch.get_num_threads() // workers))
            shares: dict[str, Any] = {"backend": backend, "count": workers, "threads": threads}
            team = start_workers(evaluation.Answering, answering, loading, **shares)
            options["workers"] = stack.enter_context(closing(team))
        try:
            diagnosis = evaluation.diagnose(answering, task, names, measurement, **options)
        except KeyboardInterrupt:
            console.tell("Kept", f"answers until now are in {out}: the same command goes on.")
            raise
    page = evaluation.write_report(diagnosis, out, command=console.command_line())
    if as_json:
        console.print_json({**diagnosis.to_dict(), "report": str(page)})
        return
    report.show_diagnosis(console.console(), diagnosis)
    if does := profile_in_words(diagnosis.profile):
        console.tell("Use it", f"--method profile:{out} ({does}).", "cyan")
    console.print_text(str(page))


def _tell_time(scoring: str, out: Path, seconds: float, answers: int) -> None:
    """Say how long a run will take at most, and what makes it less, by its first answers."""
    took = f"{seconds / 60:.1f} minutes" if seconds >= 90 else f"{max(1, round(seconds))} s"
    console.tell("Cost", f"at most about {took} for {answers:,} more answers, by the first ones.")
    if seconds >= 60:
        shorter = "a lower --limit, --documents or --positions, fewer --methods"
        or_score = "" if scoring == "likelihood" else ", or --score-by likelihood"
        console.tell("Cost", f"to shorten it, {shorter}{or_score}.")
        console.tell("Kept", f"answers are in {out}: stop at any time, the same command goes on.")


def _tell_work(trials: Sequence[tuple[ContextPrompt, Method]], new_tokens: int) -> None:
    """Say how many requests an endpoint will get, and about how long they are."""
    from rag_middle.endpoint.model import arrangement

    sent = [arrangement(prompt, method) for prompt, method in trials]
    characters = sum(len(request.text) for request in sent)
    console.tell(
        "Cost",
        f"{counted(len(sent), 'request')}, about {characters // 4:,} prompt tokens (a token for "
        f"four characters), at most {len(sent) * new_tokens:,} new tokens.",
    )


def _split(values: Iterable[str] | None) -> list[str]:
    """The names of an option that takes several, with commas or by being repeated."""
    return [name.strip() for value in values or () for name in value.split(",") if name.strip()]
