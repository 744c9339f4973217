"""Examples of a calibration from the questions of an evaluation task."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import isfinite

from rag_middle.calibration.objective import Example
from rag_middle.calibration.search import Search
from rag_middle.calibration.searches import make_search
from rag_middle.errors import ConfigError
from rag_middle.evaluation import Item, Task, spread_positions
from rag_middle.evaluation.conditions import position, question_and_gold
from rag_middle.evaluation.metrics import ANSWER_METRICS
from rag_middle.evaluation.tasks.base import as_continuation

_HELD_OUT_POSITIONS = 5
#: Added to the seed of drawn questions: an evaluation with the same seed draws others.
_OTHER_QUESTIONS = 1_000_003
_FEWEST, _FEWEST_HELD_OUT = 3, 2


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
    """Examples for the search, and held-out ones.

    Every question of the search is asked once per weight, with its gold document at positions
    spread evenly from first to last: three weights stand for begin, middle and end. A held-out
    question is asked at five positions of equal weight. A question that the data repeats, with the
    same answers and gold document, counts once; with other answers, it is not held out where the
    search asks it.

    Questions of a file are its last ones, since an evaluation asks the first ones. Drawn questions
    are others than those of an evaluation with the same seed.

    Args:
        task: with gold documents and answers whose likelihood can be measured.
        search: that the examples are for, or its name.
        questions: of the search, 3 or more; by default as many as the search asks.
        held_out: held-out questions, 2 or more, likewise; where the data has too few of both, both
            become fewer.
        weights: of the positions; by default those of the search.
        seed: of the drawing.
        chat: the answer begins a turn of a chat, and needs no space before it.

    Raises:
        ConfigError: the task has no gold documents, no single correct answers, or too
            few questions; or invalid weights.
    """
    if not task.num_positions or not task.by_likelihood:
        raise ConfigError(
            f"{task.name} cannot be calibrated on: it needs questions with a gold document and one "
            "correct answer. Use own_questions, multi_document_qa or key_value_retrieval, or an "
            "objective of your own in Python."
        )
    if isinstance(search, str):
        search = make_search(search)
    questions = search.questions if questions is None else questions
    held_out = search.held_out if held_out is None else held_out
    weight_at = _position_weights(
        search.weights if weights is None else weights, task.num_positions
    )
    wanted = questions + held_out
    if getattr(task, "data", None) is not None:
        items = task.items(None, seed)[-wanted:]
    else:
        items = task.items(wanted, seed + _OTHER_QUESTIONS)
    # A file may be sorted; the first questions of the search should be like all of them.
    random.Random(f"calibration {seed}").shuffle(items)
    share = min(1.0, len(items) / wanted)
    cut = max(_FEWEST, min(round(questions * share), len(items) - _FEWEST_HELD_OUT))
    # Other answers make it no other question.
    searched = {question_and_gold(item) for item in items[:cut]}
    unseen = [item for item in items[cut:] if question_and_gold(item) not in searched]
    if len(unseen) < _FEWEST_HELD_OUT:
        raise ConfigError(
            f"{len(items)} question{' is' if len(items) == 1 else 's are'} too few to search with "
            f"some ({_FEWEST} at least) and check on others ({_FEWEST_HELD_OUT} at least). Give "
            "more data, or more of `questions` and `held_out` (--questions, --held-out): some "
            "dozens of each."
        )
    metric = task.metrics[0] if task.metrics[0] in ANSWER_METRICS else "best_subspan_em"

    def example(item: Item, gold_position: int, weight: float = 1.0) -> Example:
        condition = position(gold_position)
        prompt = task.prompt(item, condition)
        return Example(
            question=item.id,
            position=gold_position,
            prompt=prompt,
            answer=as_continuation(task.target(item, condition), prompt, chat=chat),
            answers=item.answers,
            metric=metric,
            max_new_tokens=task.max_new_tokens,
            weight=weight,
        )

    positions = spread_positions(task.num_positions, _HELD_OUT_POSITIONS)
    return (
        [example(item, at, weight) for item in items[:cut] for at, weight in weight_at.items()],
        [example(item, at) for item in unseen for at in positions],
    )


def _position_weights(weights: Sequence[float], documents: int) -> dict[int, float]:
    """Weight by 0-based position: added up where positions coincide, left out where 0."""
    fit = len(weights) > 1 and any(weights) and all(isfinite(w) and w >= 0 for w in weights)
    if not fit:
        raise ConfigError(
            "weights must be at least two numbers >= 0, of positions from the first to the last, "
            f"not all 0 (begin, middle and end: 0.2, 0.3, 0.5); got {list(weights)}."
        )
    weight_at: dict[int, float] = {}
    for index, weight in enumerate(weights):
        if weight:
            position = index * (documents - 1) // (len(weights) - 1)
            weight_at[position] = weight_at.get(position, 0.0) + weight
    return weight_at
