"""Prompts with one right answer, by which settings are compared."""

from __future__ import annotations

from dataclasses import dataclass

from rag_middle.documents import ContextPrompt
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
        weight: of this position in the mean over the question's positions, above 0.
    """

    question: str
    position: int
    prompt: ContextPrompt
    answer: str
    answers: tuple[str, ...] = ()
    metric: str = "best_subspan_em"
    max_new_tokens: int | None = None
    weight: float = 1.0

    def is_right(self, generated: str, *, begun: bool = False) -> bool:
        """Whether a generated answer is right by `metric`, without thinking at its beginning.

        Args:
            generated: what the model wrote.
            begun: its thinking had begun in the prompt.
        """
        references = self.answers or (self.answer.strip(),)
        said = answer_after_thinking(generated, begun=begun)
        return ANSWER_METRICS[self.metric](said or "", references) == 1
