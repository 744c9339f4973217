"""A diagnosis on a terminal: tables, the verdict, what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rag_middle.evaluation.diagnosis import Diagnosis
from rag_middle.evaluation.grid import Grid
from rag_middle.evaluation.measurement import BASELINE
from rag_middle.evaluation.shapes import SHAPES
from rag_middle.evaluation.statistics import CONFIDENCE
from rag_middle.wording import percent

if TYPE_CHECKING:
    from rich.console import Console


def show_diagnosis(out: Console, diagnosis: Diagnosis) -> None:
    """Print tables, answer, shape, recommendation, notes and next steps."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    curves, share = diagnosis.curves, diagnosis.curves.metric.share
    scale, digits = (100, 1) if share else (1, 2)
    chosen = diagnosis.recommendation.label
    # Narrow: it has to fit beside the longest name of a method on a terminal of 100 characters.
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("method", overflow="fold")
    positions = [f"at {position}" for position in curves.positions]
    for heading in (*positions, "mean", f"gap [{percent(CONFIDENCE)}]", "flips", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for method in diagnosis.summary.methods:
        curve, flips = curves[method.label], method.consistency
        ratio = diagnosis.answer_time_ratios.get(method.label)
        table.add_row(
            Text(method.label, "bold" if method.label == chosen else ""),
            *(f"{scale * x.value:.{digits}f}" for x in (*curve.estimates, method.mean)),
            curve.gap.text(share=share),
            "–" if flips is None else percent(flips.flip_rate.value),
            "–" if ratio is None else f"×{ratio:.2f}",
        )
    out.print(table)
    out.print(
        f"{curves.metric.title}{', %' if share else ''}, by the position of the gold document "
        f"among {curves.documents}; {curves.questions} questions; time of an answer next to "
        f"{BASELINE}.",
        soft_wrap=True,
    )
    if diagnosis.grid:
        show_grid(out, diagnosis.grid)
    for control in diagnosis.summary.controls:
        out.print(f"With {control.title}: {control.mean.text(share=share)}.")
    name = diagnosis.results.model["name"]
    out.print(Text(f"\nDoes {name} lose the middle? {diagnosis.answer.text}"), soft_wrap=True)
    if diagnosis.answer.label != "unknown":  # else the answer has said all that is known
        shape = SHAPES[diagnosis.shape.name]
        out.print(
            f"{shape[0].upper()}{shape[1:]} ({percent(diagnosis.shape.confidence)} of resamples).",
            soft_wrap=True,
        )
        out.print(Text(diagnosis.recommendation.text, "bold"), soft_wrap=True)
    left_out = [f"{label}: {reason}" for label, reason in diagnosis.left_out.items()]
    for heading, style, lines in (
        ("Note", "yellow", diagnosis.notes),
        ("Left out", "yellow", left_out),
        ("Next", "cyan", diagnosis.next_steps),
    ):
        for line in lines:
            out.print(Text.assemble((f"{heading}: ", style), line), soft_wrap=True)


def show_grid(out: Console, grid: Grid, notes: Sequence[str] = ()) -> None:
    """Print what follows from a table of rows and columns, and notes on the run."""
    from rich.text import Text

    out.print(f"{grid.metric.title}; {grid.questions} questions.", soft_wrap=True)
    for sentence in grid.sentences:
        out.print(Text(sentence), soft_wrap=True)
    for note in notes:
        out.print(Text.assemble(("Note: ", "yellow"), note), soft_wrap=True)
