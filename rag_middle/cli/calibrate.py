"""``rag-middle calibrate``: fit a method's settings to a model and keep them as a profile."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from rag_middle.cli import console
from rag_middle.cli import options as opt
from rag_middle.cli.measuring import Questions, chosen_task, numbers, question_flag, start_workers
from rag_middle.cli.models import Loading, load
from rag_middle.wording import counted, percent, points

if TYPE_CHECKING:
    from rag_middle.calibration import Calibration, Example, SearchCost
    from rag_middle.calibration.objective import Criterion
    from rag_middle.calibration.scoring import Team

_search_flag = partial(typer.Option, rich_help_panel="Search")
Fitted = Literal[
    "positional_hidden_states",
    "positional_hidden_states:paper",
    "lpes",
    "lpes:paper",
    "siw",
    "ms_poe",
    "zero_tuning",
    "self_extend",
    "dysco",
]
"""Methods with settings to search for; with :paper, the search as the paper runs it."""


@opt.command
def calibrate(
    *,
    method: Fitted = opt.method_flag(..., help="Whose settings to fit; pine and rotor have none."),
    model: opt.Model = None,
    asked: Questions,
    questions: int | None = question_flag(
        None, min=3, help="Of the search, at least 3. Default: 40; 30 for lpes."
    ),
    held_out: int | None = question_flag(
        None, min=2, help="To check the result on, at least 2. Default: 100."
    ),
    weights: str | None = question_flag(
        None,
        metavar="FIRST,...,LAST",
        help="Of positions of the gold document. Default: 0.2,0.3,0.5 for lpes, else all 1.",
    ),
    criterion: Literal["generated_answer", "exact_match", "log_likelihood"] | None = _search_flag(
        None,
        "--compare-by",
        help="What candidates are compared by. Default: what suits method and model.",
    ),
    search_option: list[str] | None = _search_flag(
        None,
        "--search-option",
        "-s",
        metavar="NAME=VALUE",
        help="Of the search (docs/calibration.md), in JSON; repeatable.",
    ),
    workers: int | None = _search_flag(
        None, min=1, help="Processes that score. Default: as many as cores and memory."
    ),
    backend: opt.Backend = "processes",
    batch_size: opt.BatchSize = 8,
    template: opt.Template = "auto",
    seed: opt.Seed = 0,
    loading: Loading,
    out: Path = opt.output_flag(
        Path("rag-middle-calibration"),
        help="Folder for profile, report and state. A search that was killed continues there.",
    ),
    as_json: opt.Json = False,
) -> None:
    """Fit a method's settings to a model, check them on other questions, write a profile.

    The profile is used as --method profile:PATH wherever a method is named. It says whether
    held-out questions were answered better than by the unmodified model; where they were not,
    nothing is recommended.
    """
    from rag_middle import calibration
    from rag_middle.calibration.report import write_calibration
    from rag_middle.evaluation.plots import new_figure
    from rag_middle.methods.resolve import as_option
    from rag_middle.tokens import uses_chat_template

    new_figure()  # without matplotlib there is no report: say so before an hour is spent
    settings = opt.parse_method_options(search_option, "--search-option")
    search = calibration.make_search(method, as_option(settings))
    weighted = list(search.weights) if weights is None else numbers("--weights", weights)
    task = chosen_task(**asked)
    threads = loading.get("threads", 1)
    sizes: dict[str, Any] = {"questions": questions, "held_out": held_out}
    draw = partial(calibration.draw_examples, task, search, **sizes, weights=weighted, seed=seed)
    draw()  # refuses what there is too little of before the model is loaded
    console.tell("Data", f"{task.description}.")
    loaded = load(model, loading)
    examples, checked = draw(chat=uses_chat_template(loaded.tokenizer, template))
    count = workers or _fitting_workers(loaded.model)
    batches: dict[str, Any] = {"max_batch_size": batch_size, "template": template}

    def make_team(examples: Sequence[Example], criterion: Criterion) -> Team:
        shares: dict[str, Any] = {"backend": backend, "count": count, "threads": threads}
        fields = {"examples": tuple(examples), "criterion": criterion, **batches}
        return start_workers(calibration.FromDisk, loaded, loading, **shares, **fields)

    profile = out / f"{search.method}.json"
    with console.progress_bar("scoring", hidden=as_json) as progress:
        calibrated = calibration.calibrate(
            loaded,
            search,
            examples,
            checked,
            workers=make_team if count > 1 or backend == "ray" else None,
            criterion=criterion,
            seed=seed,
            **batches,
            threads_each=threads,
            state=profile.with_suffix(".state"),
            out=profile,
            data={"task": task.to_dict(), "weights": weighted},
            progress=progress,
            estimated=lambda cost: _tell_cost(cost, count),
        )
    page = write_calibration(
        calibrated.profile, profile.with_suffix(".html"), command=console.command_line()
    )
    if as_json:
        parts = ("recommended", "method", "options", "scores")
        settings = {name: getattr(calibrated.profile, name) for name in parts}
        files = {"profile": str(profile), "report": str(page)}
        console.print_json({**settings, "verdict": calibrated.verdict, **files})
        return
    _show(calibrated)
    console.print_text(f"{page}\n{profile}")


def _fitting_workers(model: Any) -> int:
    """One per core on a CPU, as far as half of the memory that is free holds their models."""
    if model.device.type != "cpu" or "SC_AVPHYS_PAGES" not in getattr(os, "sysconf_names", ()):
        return 1
    from joblib import cpu_count

    size = model.get_memory_footprint() + 500_000_000  # bytes: Python and PyTorch in each process
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(max(1, min(cpu_count(), free // 2 // size)))


def _tell_cost(cost: SearchCost, workers: int) -> None:
    minutes = ceil(cost.seconds / 60)
    known = f"; {cost.known} of {cost.scores} scores are known from before" if cost.known else ""
    console.tell(
        "Cost",
        f"at most {cost.candidates:,} candidates, compared by {cost.criterion}: about "
        f"{counted(minutes, 'minute')} with {counted(workers, 'worker')}{known}.",
    )


def _show(calibrated: Calibration) -> None:
    profile = calibrated.profile
    for row in (profile.scores["held_out"] or {}).get("places", ()):
        before, after = (percent(row[when]["value"], 1) for when in ("before", "after"))
        console.print_text(
            f"held-out accuracy with the gold document at {row['place']}: {before} before, {after} "
            f"after, {points(row['gain'])}"
        )
    settings = ", ".join(f"{name}={value}" for name, value in profile.options.items())
    console.print_text(f"{calibrated.verdict}\nBest settings found: {profile.method} {settings}")
