"""Questions of an evaluation task, as the examples of a calibration."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rag_middle.calibration.examples import Example, allotted
from rag_middle.errors import CalibrationConfigError

if TYPE_CHECKING:
    from rag_middle.evaluation import Item, Task

__all__ = ["draw_examples"]


def draw_examples(
    task: Task,
    *,
    questions: int,
    held_out: int,
    weights: Sequence[float] = (0.2, 0.3, 0.5),
    seed: int = 0,
    chat: bool = False,
) -> tuple[list[Example], list[Example]]:
    """Examples of the search, and others that it never sees.

    A question of the search is asked with its gold document at the begin, in the middle or at the
    end, as often as `weights` say; a held-out one at five places, evenly spread.

    Args:
        task: with gold documents and answers whose likelihood can be measured.
        questions: of the search.
        held_out: to check on; where the data has too few of both, both become fewer.
        weights: of begin, middle and end.
        seed: of what is drawn.
        chat: the answer begins a turn of a chat, and needs no space before it.

    Raises:
        CalibrationConfigError: the task has no gold documents, no single right answers, or too
            few questions.
    """
    from rag_middle.evaluation.conditions import position, spread_positions

    if not task.places or not task.by_likelihood:
        raise CalibrationConfigError(
            f"{task.name} cannot be calibrated on: it needs questions with a gold document and one "
            "right answer. Use own_questions, multi_document_qa or key_value_retrieval, or an "
            "objective of your own in Python."
        )
    if len(weights) != 3:
        raise CalibrationConfigError(
            f"weights must be three numbers, of begin, middle and end; got {list(weights)}."
        )
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
    last = task.places - 1
    ends: dict[int, float] = {}
    for place, weight in zip((0, last // 2, last), weights, strict=True):
        ends[place] = ends.get(place, 0.0) + weight

    def example(item: Item, place: int) -> Example:
        at = position(place)
        prompt, answer = task.prompt(item, at), task.target(item, at)
        spaced = chat or prompt.suffix[-1:].isspace()
        return Example(
            question=item.id,
            place=place,
            prompt=prompt,
            answer=answer if spaced else f" {answer}",
        )

    search = [
        example(item, place) for item, place in zip(items[:cut], allotted(cut, ends), strict=True)
    ]
    places = spread_positions(task.places, 5)
    return search, [example(item, place) for item in items[cut:] for place in places]
