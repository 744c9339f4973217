"""``rag-middle calibrate``: fit a method's settings to a model and keep them as a profile."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from math import ceil
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
    CALIBRATION_FOLDER,
    chosen_task,
    command_line,
    data_options,
    devices_of,
    load,
    question_flag,
    start_workers,
)
from rag_middle.cli.options import (
    BatchSizeOption,
    ModelOption,
    SeedOption,
    TemplateOption,
    WorkersPlace,
    command,
    loading_options,
    method_flag,
    output_flag,
    parse_method_options,
    placed,
)
from rag_middle.errors import ConfigError, MissingExtraError
from rag_middle.wording import counted, percent, points

if TYPE_CHECKING:
    from rag_middle.calibration import Calibration, Estimate, Example
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


def _drawing(
    *,
    questions: int | None = question_flag(
        None, min=3, help="Of the search, at least 3. Default: 40; 30 for lpes."
    ),
    held_out: int | None = question_flag(
        None, min=2, help="To check the result on, at least 2. Default: 100."
    ),
    weights: str | None = question_flag(
        None,
        metavar="FIRST,...,LAST",
        help="How much positions of the gold document count, spread evenly. Default: "
        "0.2,0.3,0.5 for lpes, else 1,1,1,1,1.",
    ),
) -> None:
    """Arguments of `draw_examples`, the weights as text."""


def _searching(
    *,
    criterion: Literal["generated_answer", "exact_match", "log_likelihood"] | None = _search_flag(
        None,
        "--compare-by",
        help="What candidates are compared by. Default: log_likelihood; for lpes "
        "generated_answer with a chat template, else exact_match.",
    ),
    search_option: list[str] | None = _search_flag(
        None,
        "--search-option",
        "-s",
        metavar="NAME=VALUE",
        help="Of the search (docs/calibration.md), in JSON; repeatable.",
    ),
    seed: SeedOption = 0,
    workers: int | None = _search_flag(
        None, min=1, help="Processes that score. Default: as many as cores and memory."
    ),
    threads_each: int = _search_flag(1, "--threads", min=1, help="CPU threads of each worker."),
    backend: WorkersPlace = "processes",
) -> None:
    """Arguments of the search."""


def _batching(*, max_batch_size: BatchSizeOption = 8, template: TemplateOption = "auto") -> None:
    """How prompts are scored."""


@command(
    asked=data_options,
    drawn=_drawing,
    searched=_searching,
    batches=_batching,
    loading=loading_options,
)
def calibrate(
    *,
    method: Fitted = method_flag(..., help="Whose settings to search for."),
    model: ModelOption = None,
    asked: dict[str, Any],
    drawn: dict[str, Any],
    searched: dict[str, Any],
    batches: dict[str, Any],
    loading: dict[str, Any],
    out: Path = output_flag(
        CALIBRATION_FOLDER,
        help="Folder for METHOD.json (the profile), METHOD.html (the report) and METHOD.state, "
        "from which a search that was killed continues.",
    ),
    as_json: JsonOption = False,
) -> None:
    """Fit a method's settings to a model, check them on other questions, write a profile.

    The profile is used as --method profile:PATH wherever a method is named. It says whether
    held-out questions were answered better than by the unmodified model; where they were not,
    nothing is recommended.
    """
    if "weights" in drawn:
        try:
            drawn["weights"] = [float(weight) for weight in drawn["weights"].split(",")]
        except ValueError:
            raise ConfigError(
                "--weights must be numbers joined by commas, such as 0.2,0.3,0.5; got "
                f"{drawn['weights']!r}."
            ) from None
    backend, workers = searched.pop("backend"), searched.pop("workers", None)
    from rag_middle.calibration import FromDisk, draw_examples, make_search
    from rag_middle.calibration import calibrate as run_calibration
    from rag_middle.calibration.report import write_calibration
    from rag_middle.generation.sharing import origin
    from rag_middle.methods.resolve import as_option
    from rag_middle.tokens import uses_chat_template

    settings = parse_method_options(searched.pop("search_option", ()), "--search-option")
    search = make_search(method, as_option(settings))
    weights = drawn.setdefault("weights", list(search.weights))
    task = chosen_task(**asked)
    draw = partial(draw_examples, task, search, **drawn, seed=searched["seed"])
    draw()  # refuses what there is too little of before the model is loaded
    placement = placed(loading)
    devices = devices_of(placement, workers or 1, backend)
    tell("Data", "dim", f"{task.description}.")
    loaded = load(model, **loading)
    examples, held_out = draw(chat=uses_chat_template(loaded.tokenizer, batches["template"]))
    count = workers or len(devices) or _fitting_workers(loaded.model)

    def make_team(examples: Sequence[Example], criterion: Criterion) -> Team:
        opening = FromDisk(
            **origin(loaded),
            examples=tuple(examples),
            criterion=criterion,
            options=placement,
            **batches,
        )
        threads = searched["threads_each"]
        return start_workers(
            opening, backend=backend, count=count, threads=threads, devices=devices
        )

    profile = out / f"{search.method}.json"
    state = out / f"{search.method}.state"
    with progress_bar("scoring", hidden=as_json) as progress:
        calibrated = run_calibration(
            loaded,
            search,
            examples,
            held_out,
            workers=make_team if count > 1 or backend == "ray" else None,
            **searched,
            **batches,
            state=state,
            out=profile,
            data={"task": task.to_dict(), "weights": weights},
            progress=progress,
            estimated=lambda cost: _tell_cost(cost, count),
        )
    files = [profile]
    try:
        page = write_calibration(
            calibrated.profile, profile.with_suffix(".html"), command=command_line()
        )
        files.insert(0, page)
    except MissingExtraError as error:
        warn(f"{error} There is no report.")
    if as_json:
        print_json(
            {
                "profile": str(profile),
                "recommended": calibrated.profile.recommended,
                "verdict": calibrated.verdict,
                "method": calibrated.profile.method,
                "options": calibrated.profile.options,
                "scores": calibrated.profile.scores,
                "report": str(files[0]) if len(files) > 1 else None,
            }
        )
        return
    _show(calibrated, files)


def _fitting_workers(model: Any) -> int:
    """One per core on a CPU, as far as half of the memory that is free holds their models."""
    if model.device.type != "cpu" or "SC_AVPHYS_PAGES" not in getattr(os, "sysconf_names", ()):
        return 1
    from joblib import cpu_count

    size = sum(p.numel() * p.element_size() for p in model.parameters())
    size += 500_000_000  # bytes that Python and PyTorch take in each process
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(max(1, min(cpu_count(), free // 2 // size)))


def _tell_cost(cost: Estimate, workers: int) -> None:
    minutes = ceil(cost.seconds / 60)
    known = f"; {cost.known} of {cost.scores} scores are known from before" if cost.known else ""
    tell(
        "Cost",
        "dim",
        f"at most {cost.candidates:,} candidates, compared by {cost.criterion}: about "
        f"{counted(minutes, 'minute')} with {counted(workers, 'worker')}{known}.",
    )


def _show(calibrated: Calibration, files: Sequence[Path]) -> None:
    from rich.table import Table

    out = console()
    scores = calibrated.profile.scores
    if scores["held_out"]:
        table = Table("gold position", "before", "after", "gain", title="held-out accuracy")
        for row in scores["held_out"]["places"]:
            table.add_row(
                str(row["place"]),
                percent(row["before"]["value"], 1),
                percent(row["after"]["value"], 1),
                points(row["gain"]),
            )
        out.print(table)
    settings = ", ".join(f"{name}={value}" for name, value in calibrated.profile.options.items())
    out.print(f"Best found: {calibrated.profile.method} {settings}")
    out.print(calibrated.verdict)
    for path in files:
        print_text(f"{path}\n")
