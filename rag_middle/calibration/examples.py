"""Prompts with one right answer, by which settings are compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm
from typing import Any, Literal

from rag_middle.documents import ContextPrompt
from rag_middle.errors import CalibrationConfigError
from rag_middle.evaluation.metrics import ANSWER_METRICS
from rag_middle.tokens.chat import has_chat_template

__all__ = ["Example", "ScoringScheme", "digest", "is_chat"]

_FINEST = 1000  # largest denominator of a weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A prompt, and what the model should write.

    Attributes:
        question: its name; the same question asked with its answer at several places has one name.
        place: 0-based place of the document that answers.
        prompt: what the model reads.
        answer: the text that should follow, with the space that it begins with.
        answers: what counts as right in a generated answer; by default `answer`.
        metric: that says whether a generated answer is right; a key of `ANSWER_METRICS`.
        max_new_tokens: most tokens of a generated answer, and never more than 32 beyond `answer`.
        weight: how much its verdict counts beside those of the question's other places.

    Raises:
        CalibrationConfigError: an unknown metric, or a weight that is not positive.
    """

    question: str
    place: int
    prompt: ContextPrompt
    answer: str
    answers: tuple[str, ...] = ()
    metric: str = "best_subspan_em"
    max_new_tokens: int | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.metric not in ANSWER_METRICS:
            raise CalibrationConfigError(
                f"Example {self.question}: metric must be one of {', '.join(ANSWER_METRICS)}, got "
                f"{self.metric!r}."
            )
        if Fraction(self.weight).limit_denominator(_FINEST) <= 0:
            raise CalibrationConfigError(
                f"Example {self.question}: weight must be {1 / _FINEST} or more, got {self.weight}."
            )

    def is_right(self, generated: str) -> bool:
        """Whether a generated answer counts as right."""
        references = self.answers or (self.answer.strip(),)
        return ANSWER_METRICS[self.metric](generated, references) == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringScheme:
    """Which prompts ask one question, and how much the verdict on each of them counts.

    Attributes:
        questions: of each prompt, the number of its question.
        weights: of each prompt; whole numbers, so that equal scores are equal to the last bit.
    """

    questions: tuple[int, ...]
    weights: tuple[int, ...]

    @classmethod
    def of(cls, examples: Sequence[Example]) -> ScoringScheme:
        """The scheme of examples, in their order."""
        numbers: dict[str, int] = {}
        questions = [numbers.setdefault(each.question, len(numbers)) for each in examples]
        exact = [Fraction(each.weight).limit_denominator(_FINEST) for each in examples]
        scale = lcm(*(weight.denominator for weight in exact))
        whole = [int(weight * scale) for weight in exact]
        shared = gcd(*whole) or 1
        return cls(questions=tuple(questions), weights=tuple(each // shared for each in whole))

    @classmethod
    def alone(cls, count: int) -> ScoringScheme:
        """That of `count` questions, each asked once."""
        return cls(questions=tuple(range(count)), weights=(1,) * count)


def digest(examples: Sequence[Example]) -> str:
    """SHA-256 of prompts, answers, places and how they are scored, in their order."""
    said = [
        [
            each.question,
            each.place,
            each.prompt.prefix,
            [document.render() for document in each.prompt.documents],
            each.prompt.suffix,
            each.answer,
            [*each.answers, each.metric, each.max_new_tokens, each.weight],
        ]
        for each in examples
    ]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def is_chat(tokenizer: Any, template: Literal["auto", "chat", "raw"]) -> bool:
    """Whether prompts are written as turns of a chat, which the model then answers as one."""
    return template == "chat" or (template == "auto" and has_chat_template(tokenizer))
