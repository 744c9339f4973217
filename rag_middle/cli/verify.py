"""``rag-middle verify``: does this installation give the authors' numbers?"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rag_middle.cli.console import JsonOption, console, print_json
from rag_middle.cli.measuring import progress_bar
from rag_middle.cli.options import command

if TYPE_CHECKING:
    from rag_middle.verify import VerificationReport

_SHOWN_FAILURES = 10
_STYLES = {"passed": "green", "failed": "bold red", "unknown": "bold red", "skipped": "yellow"}


class AttnImplementation(StrEnum):
    """Attention that runs in float32 on the CPU."""

    sdpa = "sdpa"
    eager = "eager"


@command()
def verify(
    directory: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR",
            help="Directory of golden cases. Without it, those shipped with the package.",
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Run only this method's cases; repeatable."),
    ] = None,
    attn_implementation: Annotated[
        AttnImplementation, typer.Option(help="Attention of the models, where they have it.")
    ] = AttnImplementation.sdpa,
    as_json: JsonOption = False,
) -> None:
    """Compare this installation with recorded outputs of the methods' authors.

    Tiny models run golden prompts under each method, in float32 on the CPU; no network is needed.
    Exit status 1 where a logit differs by more than 0.001, and where a case belongs to a method
    that does not exist here.
    """
    from rag_middle.verify import verify as run_cases

    with progress_bar("verifying", hidden=as_json) as progress:
        report = run_cases(
            directory,
            method or None,
            attn_implementation=attn_implementation.value,
            progress=progress,
        )
    if as_json:
        print_json(report.to_dict())
    else:
        _show(report)
    raise typer.Exit(0 if report.passed else 1)


def _show(report: VerificationReport) -> None:
    from rich.table import Table
    from rich.text import Text

    out = console()
    table = Table("method", "cases", "skipped", "largest difference", "result")
    for method in report.methods:
        difference = "–" if method.difference is None else f"{method.difference:.1e}"
        counts = (str(len(method.results)), str(method.count("skipped")))
        result = Text(method.status, _STYLES[method.status])
        table.add_row(method.method, *counts, difference, result)
    out.print(table)
    for failure in report.failures[:_SHOWN_FAILURES]:
        out.print(f"{failure.status} {failure.id}: {failure.reason}", soft_wrap=True)
    if len(report.failures) > _SHOWN_FAILURES:
        out.print(f"… and {len(report.failures) - _SHOWN_FAILURES} more; --json lists all.")
    for reason, count in Counter(result.reason for result in report.skipped).items():
        out.print(f"skipped {count}: {reason}", soft_wrap=True)
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    out.print(
        f"Tolerance {report.tolerance:g}, {report.attn_implementation} attention; {versions}.",
        soft_wrap=True,
    )
