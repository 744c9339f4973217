"""A diagnosis on a terminal: a plot of characters, a table, the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rag_middle.evaluation.diagnosis import Diagnosis
from rag_middle.evaluation.measurement import BASELINE
from rag_middle.evaluation.results import PositionCurves
from rag_middle.evaluation.shape import IN_WORDS
from rag_middle.evaluation.statistics import Estimate

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["character_plot", "show_diagnosis"]

_ROWS = 9
_COLUMN = 9  # characters between places
_MARKS = "o+x#@%&=~"
_SEVERAL = "*"


def show_diagnosis(out: Console, found: Diagnosis) -> None:
    """Print plot, table, shape, recommendation, notes and next steps."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    curves, share = found.curves, found.curves.metric.share
    shown = [BASELINE]
    if found.recommendation.label != BASELINE:
        shown.append(found.recommendation.label)
    out.print(Text(character_plot(curves, shown)), soft_wrap=True)
    # Narrow: it has to fit beside the longest name of a method on a terminal of 100 characters.
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("method", overflow="fold")
    headings = [f"at {at + 1}" for at in curves.places]
    for heading in (*headings, "mean", "gap [95 %]", "flips", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in found.summary.methods:
        curve, ratio = curves[each.label], found.answer_ratio(each.label)
        table.add_row(
            Text(each.label, "bold" if each.label == found.recommendation.label else ""),
            *(_number(estimate.value, share) for estimate in curve.estimates),
            _number(each.mean.value, share),
            _interval(curve.gap, share),
            "–" if each.flip_rate is None else f"{100 * each.flip_rate.value:.0f} %",
            "–" if ratio is None else f"×{ratio:.2f}",
        )
    out.print(table)
    unit = ", %" if share else ""
    out.print(
        f"{curves.metric.title}{unit}, with the answer's document at some places of "
        f"{curves.documents}; {curves.questions} questions; time of an answer next to {BASELINE}.",
        soft_wrap=True,
    )
    for control in found.summary.controls:
        name = {"gold_only": "the answering document alone", "closed_book": "no documents"}
        out.print(
            f"With {name[control.name]}: {_number(control.mean.value, share)} "
            f"{_interval(control.mean, share, value=False)}."
        )
    out.print()
    in_words = IN_WORDS[found.shape.name]
    out.print(
        f"{in_words[0].upper()}{in_words[1:]} ({found.shape.confidence:.0%} of resamples).",
        soft_wrap=True,
    )
    out.print(Text(found.recommendation.text, "bold"), soft_wrap=True)
    for note in found.notes:
        out.print(Text.assemble(("Note: ", "yellow"), note), soft_wrap=True)
    for label, reason in found.left_out.items():
        out.print(Text.assemble(("Left out: ", "yellow"), f"{label}: {reason}"), soft_wrap=True)
    for step in found.next_steps:
        out.print(Text.assemble(("Next: ", "cyan"), step), soft_wrap=True)


def character_plot(curves: PositionCurves, labels: Sequence[str]) -> str:
    """Curves drawn with ASCII characters, places from left to right.

    Args:
        curves: of a run.
        labels: the methods to draw; where marks meet, the plot shows ``*``.
    """
    scale = 100.0 if curves.metric.share else 1.0
    values = {label: [scale * e.value for e in curves[label].estimates] for label in labels}
    low, high = 0.0, 100.0
    if not curves.metric.share:
        every = [value for row in values.values() for value in row]
        low, high = min(every), max(every)
    height = (high - low) or 1.0
    grid = [[" "] * (_COLUMN * len(curves.places)) for _ in range(_ROWS)]
    for label, mark in zip(labels, _MARKS, strict=False):
        for at, value in enumerate(values[label]):
            row = round((high - value) / height * (_ROWS - 1))
            column = at * _COLUMN + _COLUMN // 2
            grid[row][column] = mark if grid[row][column] == " " else _SEVERAL
    lines = []
    for number, cells in enumerate(grid):
        level = high - number * height / (_ROWS - 1)
        scaled = f"{level:7.0f}" if curves.metric.share else f"{level:7.2f}"
        lines.append(f"{scaled} |{''.join(cells).rstrip()}")
    lines.append(" " * 8 + "+" + "-" * (_COLUMN * len(curves.places)))
    lines.append(" " * 9 + "".join(f"{at + 1:^{_COLUMN}}" for at in curves.places).rstrip())
    legend = "   ".join(f"{mark} {label}" for label, mark in zip(labels, _MARKS, strict=False))
    lines.append(" " * 9 + f"place of the answer's document, of {curves.documents};  {legend}")
    return "\n".join(lines)


def _number(value: float, share: bool) -> str:
    return f"{100 * value:.1f}" if share else f"{value:.2f}"


def _interval(each: Estimate, share: bool, *, value: bool = True) -> str:
    low, high = _number(each.low, share), _number(each.high, share)
    return f"{_number(each.value, share)} [{low}, {high}]" if value else f"[{low}, {high}]"
