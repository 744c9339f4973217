"""Prompts with one right answer, by which settings are compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from rag_middle.documents import ContextPrompt
from rag_middle.errors import ConfigError
from rag_middle.evaluation.metrics import ANSWER_METRICS
from rag_middle.thinking import answer_after_thinking


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A prompt, and what the model should write.

    Attributes:
        question: its name, shared by the prompts that ask it with the gold document at other
            positions.
        position: 0-based, of the gold document.
        prompt: what the model reads.
        answer: the text that should follow, with the space that it begins with.
        answers: the reference answers for a generated answer; by default `answer`.
        metric: decides whether a generated answer is right; a key of `ANSWER_METRICS`.
        max_new_tokens: limit for a generated answer; by default, and at most, 32 tokens more than
            `answer` has. The examples of a calibration share the highest of their limits.
        weight: of this position in the mean over the question's positions.

    Raises:
        ConfigError: an unknown metric, or a weight that is no positive number.
    """

    question: str
    position: int
    prompt: ContextPrompt
    answer: str
    answers: tuple[str, ...] = ()
    metric: str = "best_subspan_em"
    max_new_tokens: int | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.metric not in ANSWER_METRICS:
            raise ConfigError(
                f"Example {self.question}: metric must be one of {', '.join(ANSWER_METRICS)}, got "
                f"{self.metric!r}."
            )
        if not (isfinite(self.weight) and self.weight > 0):
            raise ConfigError(
                f"Example {self.question}: weight must be a number > 0, got {self.weight}."
            )

    def is_right(self, generated: str, *, begun: bool = False) -> bool:
        """Whether a generated answer is right by `metric`, without thinking at its beginning.

        Args:
            generated: what the model wrote.
            begun: its thinking had begun in the prompt.
        """
        references = self.answers or (self.answer.strip(),)
        said = answer_after_thinking(generated, begun=begun)
        return ANSWER_METRICS[self.metric](said or "", references) == 1


def digest(examples: Sequence[Example]) -> str:
    """SHA-256 of prompts, answers, positions and scoring, in the order of the examples."""
    content = [
        [
            example.question,
            example.position,
            example.prompt.prefix,
            [document.render() for document in example.prompt.documents],
            example.prompt.suffix,
            example.answer,
            [*example.answers, example.metric, example.max_new_tokens, example.weight],
        ]
        for example in examples
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
