"""Prompts with one right answer, by which settings are compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rag_middle.documents import ContextPrompt
from rag_middle.errors import CalibrationConfigError

__all__ = ["Example", "allotted", "digest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A prompt, and what the model should write.

    Attributes:
        question: its name; the same question asked with its answer at several places has one name.
        place: 0-based place of the document that answers.
        prompt: what the model reads.
        answer: the text that should follow, with the space that it begins with.
    """

    question: str
    place: int
    prompt: ContextPrompt
    answer: str


def digest(examples: Sequence[Example]) -> str:
    """SHA-256 of prompts, answers and places, in their order."""
    said = [
        [
            each.question,
            each.place,
            each.prompt.prefix,
            [document.render() for document in each.prompt.documents],
            each.prompt.suffix,
            each.answer,
        ]
        for each in examples
    ]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def allotted(count: int, weights: Mapping[int, float]) -> list[int]:
    """`count` places, each as often as its weight says: their mean is the weighted score.

    Every example then weighs the same, so that verdicts may be compared one by one. Places take
    turns as evenly as they can, so that the first examples are spread like all of them.

    Args:
        count: of examples.
        weights: by place; only their proportions matter.

    Raises:
        CalibrationConfigError: weights that are negative or all zero, or too few examples for
            every place that has a weight to get one.
    """
    total = sum(weights.values())
    if not weights or min(weights.values()) < 0 or total <= 0:
        raise CalibrationConfigError(
            f"weights must be numbers >= 0 and not all 0, got {list(weights.values())}."
        )
    given: dict[int, int] = {place: 0 for place, weight in weights.items() if weight > 0}
    order = []
    for index in range(1, count + 1):
        # The place that is farthest behind its share.
        place = max(given, key=lambda each: weights[each] / total * index - given[each])
        given[place] += 1
        order.append(place)
    if not all(given.values()):
        raise CalibrationConfigError(
            f"{count} questions are too few for {len(given)} places: some would get none. Ask for "
            "more."
        )
    return order
