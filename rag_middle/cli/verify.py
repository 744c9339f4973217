"""``rag-middle verify``: does this installation give the authors' numbers?"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from rag_middle.cli.console import JsonOption, console, print_json, progress_bar
from rag_middle.cli.options import command

if TYPE_CHECKING:
    from rag_middle.verify import VerificationReport

_SHOWN_FAILURES = 10
_STYLES = {"passed": "green", "failed": "bold red", "unknown": "bold red", "skipped": "yellow"}


@command()
def verify(
    directory: Path | None = typer.Argument(
        None, metavar="DIR", help="Golden cases. Default: those of the package."
    ),
    method: list[str] | None = typer.Option(None, help="Only this method's cases; repeatable."),
    attn_implementation: Literal["sdpa", "eager"] = typer.Option(
        "sdpa", help="Attention of the models, where they have it."
    ),
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
            directory, method or None, attn_implementation=attn_implementation, progress=progress
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
    lines = [f"{it.status} {it.id}: {it.reason}" for it in report.failures[:_SHOWN_FAILURES]]
    if len(report.failures) > _SHOWN_FAILURES:
        lines.append(f"… and {len(report.failures) - _SHOWN_FAILURES} more; --json lists all.")
    skipped = Counter(result.reason for result in report.skipped)
    lines += [f"skipped {count}: {reason}" for reason, count in skipped.items()]
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    attention = f"{report.attn_implementation} attention"
    lines.append(f"Tolerance {report.tolerance:g}, {attention}; {versions}.")
    out.print("\n".join(lines), soft_wrap=True)
