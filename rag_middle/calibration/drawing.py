"""Questions of an evaluation task, as the examples of a calibration."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING

from rag_middle.calibration.examples import Example
from rag_middle.calibration.searches import Search, make_search
from rag_middle.errors import CalibrationConfigError
from rag_middle.evaluation.metrics import ANSWER_METRICS

if TYPE_CHECKING:
    from rag_middle.evaluation import Item, Task

__all__ = ["draw_examples"]

_HELD_OUT_PLACES = 5


def draw_examples(
    task: Task,
    search: Search | str,
    *,
    questions: int | None = None,
    held_out: int | None = None,
    weights: Sequence[float] | None = None,
    seed: int = 0,
    chat: bool = False,
) -> tuple[list[Example], list[Example]]:
    """Examples of the search, and others that it never sees.

    Every question of the search is asked once for each weight, with its gold document at places
    that are spread evenly from the first to the last: three weights are of begin, middle and end.
    A held-out question is asked at five places, which count alike.

    Args:
        task: with gold documents and answers whose likelihood can be measured.
        search: that the examples are for, or its name.
        questions: of the search; by default as many as the search has.
        held_out: questions to check on, likewise; where the data has too few of both, both become
            fewer.
        weights: of the places; by default those of the search.
        seed: of what is drawn.
        chat: the answer begins a turn of a chat, and needs no space before it.

    Raises:
        CalibrationConfigError: the task has no gold documents, no single right answers, or too
            few questions; or weights that make no sense.
    """
    from rag_middle.evaluation.conditions import position, spread_positions

    if not task.num_positions or not task.by_likelihood:
        raise CalibrationConfigError(
            f"{task.name} cannot be calibrated on: it needs questions with a gold document and one "
            "right answer. Use own_questions, multi_document_qa or key_value_retrieval, or an "
            "objective of your own in Python."
        )
    chosen = make_search(search) if isinstance(search, str) else search
    questions = chosen.questions if questions is None else questions
    held_out = chosen.held_out if held_out is None else held_out
    by_place = _weights_by_place(chosen.weights if weights is None else weights, task.num_positions)
    items = task.items(questions + held_out, seed)
    # A file may be sorted; the first questions of the search should be like all of them.
    random.Random(f"calibration {seed}").shuffle(items)
    share = min(1.0, len(items) / (questions + held_out))
    cut = round(questions * share)
    if cut < 3 or len(items) - cut < 2:
        raise CalibrationConfigError(
            f"{len(items)} questions are too few to search with some and check on others. Give "
            "more, at least some dozens."
        )
    metric = task.metrics[0] if task.metrics[0] in ANSWER_METRICS else "best_subspan_em"

    def example(item: Item, place: int, weight: float = 1.0) -> Example:
        at = position(place)
        prompt, answer = task.prompt(item, at), task.target(item, at)
        spaced = chat or prompt.suffix[-1:].isspace()
        return Example(
            question=item.id,
            place=place,
            prompt=prompt,
            answer=answer if spaced else f" {answer}",
            answers=item.answers,
            metric=metric,
            max_new_tokens=task.max_new_tokens,
            weight=weight,
        )

    places = spread_positions(task.num_positions, _HELD_OUT_PLACES)
    return (
        [example(item, place, weight) for item in items[:cut] for place, weight in by_place],
        [example(item, place) for item in items[cut:] for place in places],
    )


def _weights_by_place(weights: Sequence[float], places: int) -> list[tuple[int, float]]:
    """0-based places with their weights; what falls on one place is added, what has none left out.

    Raises:
        CalibrationConfigError: fewer than two, or weights that are negative or all zero.
    """
    if (
        len(weights) < 2
        or not all(isfinite(weight) and weight >= 0 for weight in weights)
        or not any(weights)
    ):
        raise CalibrationConfigError(
            "weights must be at least two numbers >= 0, of places from the first to the last, not "
            f"all 0 (begin, middle and end: 0.2, 0.3, 0.5); got {list(weights)}."
        )
    by_place: dict[int, float] = {}
    for index, weight in enumerate(weights):
        place = index * (places - 1) // (len(weights) - 1)
        if weight:
            by_place[place] = by_place.get(place, 0.0) + weight
    return list(by_place.items())
