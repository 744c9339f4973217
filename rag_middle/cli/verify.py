"""``rag-middle verify``: does this installation give the authors' numbers?"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from rag_middle.cli import console
from rag_middle.cli import options as opt

if TYPE_CHECKING:
    from rag_middle.verify import VerificationReport


@opt.command
def verify(
    directory: Path | None = typer.Argument(
        None, metavar="DIR", help="Golden cases. Default: those of the package."
    ),
    method: list[str] | None = typer.Option(None, help="Only this method's cases; repeatable."),
    attn_implementation: Literal["sdpa", "eager"] = typer.Option(
        "sdpa", help="Attention of the models, where they have it."
    ),
    threads: opt.Threads = None,
    as_json: opt.Json = False,
) -> None:
    """Compare this installation with recorded outputs of the methods' authors.

    Tiny models run golden prompts under each method, in float32 on the CPU; no network is needed.
    Exit status 1 where a logit differs by more than 0.001, and where a case belongs to a method
    that does not exist here.
    """
    from rag_middle.verify import verify as run_cases

    attention = attn_implementation
    with console.progress_bar("verifying", hidden=as_json) as bar:
        report = run_cases(directory, method or None, attn_implementation=attention, progress=bar)
    if as_json:
        console.print_json(report.to_dict())
    else:
        _show(report)
    raise typer.Exit(0 if report.passed else 1)


def _show(report: VerificationReport) -> None:
    lines = [f"{'method':<28} cases  skipped  largest difference  result"]
    for method in report.methods:
        difference = "–" if method.difference is None else f"{method.difference:.1e}"
        counts = f"{len(method.results):>5}  {method.count('skipped'):>7}"
        lines.append(f"{method.method:<28} {counts}  {difference:>18}  {method.status}")
    lines += [f"{it.status} {it.id}: {it.reason}" for it in report.failures]
    skipped = Counter(result.reason for result in report.skipped)
    lines += [f"skipped {count}: {reason}" for reason, count in skipped.items()]
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    attention = report.attn_implementation
    lines.append(f"Tolerance {report.tolerance:g}, {attention} attention; {versions}.")
    console.print_text("\n".join(lines))
