"""``rag-middle plan``: does a model fit a GPU, and what would a method cost there?"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from rag_middle.cli.console import JsonOption, console, print_json
from rag_middle.cli.options import METHOD_PANEL, command

if TYPE_CHECKING:
    from rag_middle.costs.plan import CostPlan
    from rag_middle.methods import Method

__all__ = ["plan"]


class GpuName(StrEnum):
    """GPUs whose data sheets are known here."""

    rtx4090 = "rtx4090"
    a100 = "a100"
    h100 = "h100"


@command()
def plan(
    model: Annotated[
        str, typer.Option(help="Directory or hub name of a model; only its config is read.")
    ],
    method: Annotated[
        list[str] | None,
        METHOD_PANEL.option(
            help="Plan for this method; repeatable. Without it, for all that need no settings.",
        ),
    ] = None,
    documents: Annotated[int, typer.Option(help="Documents in a prompt.", min=1)] = 20,
    tokens: Annotated[
        list[int] | None,
        typer.Option(
            help="Length of the prompt; repeatable. Without it, 4096 and 8192, as far as the "
            "model's context window goes.",
            min=100,
        ),
    ] = None,
    gpu: Annotated[GpuName, typer.Option(help="The GPU.")] = GpuName.rtx4090,
    revision: Annotated[str | None, typer.Option(help="Of the model on the hub.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Predict memory and time on a GPU from a model's config; no weights are read, nothing runs.

    Figures come from counted operations and the GPU's data sheet. They were not measured: expect
    ratios to be closer to the truth than times.
    """
    from rag_middle.costs import plan as costs
    from rag_middle.costs.gpus import GPUS
    from rag_middle.generation.loading import load_config
    from rag_middle.methods import resolve_method
    from rag_middle.model_files import check_config

    chosen = [resolve_method(name) for name in method] if method else _without_settings()
    config = load_config(model, revision=revision)
    check_config(model, config)
    planned = costs.plan_costs(
        config,
        chosen,
        gpu=GPUS[gpu.value],
        documents=documents,
        tokens=tokens,
    )
    if as_json:
        print_json(costs.as_json(planned, model=model))
    else:
        _show(planned)


def _without_settings() -> list[Method]:
    """The unmodified model first, and every method that works as it comes."""
    from rag_middle.errors import MethodConfigError
    from rag_middle.methods import METHODS

    ready = []
    for name, kind in METHODS.items():
        try:
            made = kind()
        except (MethodConfigError, TypeError):  # settings that only a search can find
            continue
        if name == "none" or not made.is_neutral:
            ready.append(made)
    return ready


def _show(planned: CostPlan) -> None:
    from rich.table import Table
    from rich.text import Text

    out = console()
    weights = ", ".join(f"{_size(size)} in {name}" for name, size in planned.weight_bytes.items())
    millions = planned.parameters / 1e6
    numbers = f"{millions / 1e3:.2f} billion" if millions >= 100 else f"{millions:.2f} million"
    out.print(Text(f"{planned.gpu.name}, {planned.gpu.gigabytes:g} GB. All figures are predicted."))
    out.print(Text(f"Weights: {numbers} numbers, {weights}."))
    for tokens in dict.fromkeys(cost.tokens for cost in planned.costs if not cost.problem):
        table = Table(title=f"{tokens} tokens, {planned.documents} documents")
        table.add_column("method", no_wrap=True)
        for heading in ("first token", "ratio", "per token", "ratio", "KV cache", "working"):
            table.add_column(heading, justify="right")
        table.add_column("fits in", no_wrap=True)
        for cost in planned.costs:
            if cost.tokens != tokens or cost.problem:
                continue
            fitting = [name for name, fits in (cost.fits or {}).items() if fits]
            table.add_row(
                Text(cost.method),
                _time(cost.first_token_seconds),
                f"{cost.first_token_ratio:.2f}",
                _time(cost.token_seconds),
                f"{cost.token_ratio:.2f}",
                _size(cost.cache_bytes),
                _size(cost.working_bytes),
                Text(fitting[0] if fitting else "nothing"),
            )
        out.print(table)
    # What a method lacks is the same at every length; a length is the same for every method.
    for problem in dict.fromkeys(cost.problem for cost in planned.costs if cost.problem):
        out.print(Text(f"Not planned: {problem}"), soft_wrap=True)
    out.print(
        Text(
            "Working memory includes the KV cache. The last column is the widest number format in "
            "which the weights fit beside it; times are those of bfloat16."
        ),
        soft_wrap=True,
    )


def _time(seconds: float) -> str:
    """With as many figures as a prediction deserves, also of a small model."""
    if seconds >= 0.1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.0f} ms" if seconds >= 0.01 else f"{1e3 * seconds:.1g} ms"


def _size(size: float) -> str:
    """Bytes in GB, or in MB where that would be 0.0 GB."""
    return f"{size / 1e9:.1f} GB" if size >= 5e7 else f"{size / 1e6:.1f} MB"
