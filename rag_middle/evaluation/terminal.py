"""A diagnosis on a terminal: the table, the verdict, what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from rag_middle.evaluation.diagnosis import Diagnosis
from rag_middle.evaluation.grid import Grid
from rag_middle.evaluation.measurement import BASELINE
from rag_middle.evaluation.shapes import SHAPES
from rag_middle.evaluation.statistics import CONFIDENCE, Estimate
from rag_middle.wording import percent

if TYPE_CHECKING:
    from rich.console import Console


def show_diagnosis(out: Console, diagnosis: Diagnosis) -> None:
    """Print the table, answer, shape, recommendation, notes and next steps."""
    curves, share = diagnosis.curves, diagnosis.curves.metric.share
    scale, digits, unit = (100, 1, ", %") if share else (1, 2, "")
    positions = [f"at {position}" for position in curves.positions]
    table = _table("method", *positions, "mean", f"gap [{percent(CONFIDENCE)}]", "flips", "time")
    for method in diagnosis.summary.methods:
        curve, flips = curves[method.label], method.consistency
        ratio = diagnosis.answer_time_ratios.get(method.label)
        table.add_row(
            Text(method.label, "bold" if method.label == diagnosis.recommendation.label else ""),
            *(f"{scale * x.value:.{digits}f}" for x in (*curve.estimates, method.mean)),
            curve.gap.text(share=share),
            "–" if flips is None else percent(flips.flip_rate.value),
            "–" if ratio is None else f"×{ratio:.2f}",
        )
    out.print(table)
    _print(
        out,
        f"{curves.metric.title}{unit}, by the position of the gold document among "
        f"{curves.documents}; {curves.questions} questions; time of an answer next to {BASELINE}.",
    )
    if diagnosis.grid:
        show_grid(out, diagnosis.grid)
    for control in diagnosis.summary.controls:
        _print(out, f"With {control.title}: {control.mean.text(share=share)}.")
    name = diagnosis.results.model["name"]
    _print(out, f"\nDoes {name} lose the middle? {diagnosis.answer.text}")
    if diagnosis.answer.label != "unknown":  # else the answer has said all that is known
        shape, sure = SHAPES[diagnosis.shape.name], percent(diagnosis.shape.confidence)
        _print(out, f"{shape[0].upper()}{shape[1:]} ({sure} of resamples).")
        out.print(Text(diagnosis.recommendation.text, "bold"), soft_wrap=True)
    left_out = [f"{label}: {reason}" for label, reason in diagnosis.left_out.items()]
    _print(out, *diagnosis.notes, heading=("Note: ", "yellow"))
    _print(out, *left_out, heading=("Left out: ", "yellow"))
    _print(out, *diagnosis.next_steps, heading=("Next: ", "cyan"))


def show_grid(out: Console, grid: Grid, notes: Sequence[str] = ()) -> None:
    """Print means by row and method with their differences, and notes on the run."""
    share, first = grid.metric.share, grid.rows[0]

    def shown(estimates: Mapping[str, Estimate], label: str) -> str:
        return estimates[label].text(share=share, signed=True) if label in estimates else "–"

    abstained = ("abstained",) if first.abstained else ()
    table = _table(
        grid.row_title, "method", "mean", "minus none", f"minus {first.name}", *abstained
    )
    for row in grid.rows:
        for label, curve in row.curves.items():
            table.add_row(
                Text(row.name),
                Text(label),
                curve.mean.text(share=share),
                shown(row.differences, label),
                shown(row.changes, label),
                *(row.abstained[label].text(share=True) for _ in abstained),
            )
    out.print(table)
    _print(
        out, f"{grid.metric.title}; {grid.questions} questions. An interval without 0: significant."
    )
    _print(out, *notes, heading=("Note: ", "yellow"))


def _table(first: str, *others: str) -> Table:
    """Narrow: it has to fit beside the longest name of a method on a terminal of 100 characters."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column(first, overflow="fold")
    for heading in others:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _print(out: Console, *lines: str, heading: tuple[str, str] | str = "") -> None:
    for line in lines:
        out.print(Text.assemble(heading, line), soft_wrap=True)
