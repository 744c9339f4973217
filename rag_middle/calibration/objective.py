"""How good settings are: a number for a method, higher being better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import compress
from math import fsum, isfinite
from typing import Literal

from rag_middle.documents import ContextPrompt
from rag_middle.errors import ConfigError
from rag_middle.evaluation.metrics import ANSWER_METRICS
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import Method
from rag_middle.thinking import answer_after_thinking
from rag_middle.tokens import TemplateName

#: Any function of a method; a search maximises it.
Objective = Callable[[Method], float]

#: ``generated_answer``: accuracy of generated answers by the task's metric (they contain a
#: reference answer); ``exact_match``: share of prompts after which greedy decoding would write
#: `Example.answer` word for word from its first token on, read in one forward pass;
#: ``log_likelihood``: of `Example.answer`, in nats.
Criterion = Literal["generated_answer", "exact_match", "log_likelihood"]

_PHRASING = 32  # tokens of a generated answer beside the reference answer's own


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The score of one candidate.

    Attributes:
        score: the objective.
        right: for each prompt ``"1"`` for a correct answer, ``"0"`` for a wrong one; empty where
            the objective has no examples.
        log_likelihood: mean over prompts, in nats per answer; None where it was not computed. For
            generated answers it is computed where none is right, to tell those candidates apart.
    """

    score: float
    right: str = ""
    log_likelihood: float | None = None


class ExampleObjective:
    """Mean over examples, by their weights.

    ``exact_match`` and ``log_likelihood`` use teacher forcing: one forward pass per prompt. An
    answer matches exactly where each of its tokens has the highest probability after those before
    it, that is, where greedy decoding writes it. This is the accuracy of a model that answers with
    nothing but the value. A model that answers in sentences, in quotation marks or by another
    reference answer scores near zero: there, ``generated_answer``, which decodes greedily, is the
    accuracy.

    Args:
        model: its own method is not used.
        examples: those of the search, followed by the held-out ones.
        max_batch_size: prompts per forward pass.
    """

    def __init__(
        self,
        model: RagMiddleModel,
        examples: Sequence[Example],
        *,
        criterion: Criterion = "exact_match",
        max_batch_size: int = 8,
        template: TemplateName = "auto",
    ) -> None:
        self._model = RagMiddleModel(
            model.model,
            model.tokenizer,
            context_window=model.context_window,
            # Hundreds of candidates differ in numbers only: that the method reaches the model is
            # checked once, for the winner.
            self_check=False,
            kernels=model.kernels,
        )
        self.examples = tuple(examples)
        # Fractions, so that equal scores are equal to the last bit.
        self._weights = [Fraction(e.weight).limit_denominator(1000) for e in self.examples]
        self._prompts = [self._model.encode(e.prompt, template=template) for e in self.examples]
        self._answers = [self._model.token_ids(e.answer) for e in self.examples]
        limits = [
            min(len(answer) + _PHRASING, e.max_new_tokens or len(answer) + _PHRASING)
            for answer, e in zip(self._answers, self.examples, strict=True)
        ]
        # One limit for all, so that a prompt's answer does not depend on the rest of its batch.
        self._max_new_tokens = max(limits, default=1)
        self._criterion = criterion
        self._batch = max_batch_size

    def __call__(self, method: Method) -> float:
        """The mean over all examples."""
        return self.outcome(method).score

    def outcome(
        self,
        method: Method,
        start: int = 0,
        stop: int | None = None,
        *,
        criterion: Criterion | None = None,
    ) -> Outcome:
        """The mean over ``examples[start:stop]``, by the objective's criterion or another.

        Raises:
            ConfigError: a log-likelihood is not finite, or every answer was cut within
                the model's thinking.
        """
        part, criterion = slice(start, stop), criterion or self._criterion
        weights, likelihood = self._weights[part], None
        right = self._right(method, part) if criterion == "generated_answer" else []
        if not any(right):  # of candidates that get nothing right, the likelihood tells the nearest
            scores = self._model.score_batch(
                self._prompts[part],
                self._answers[part],
                method=method,
                max_batch_size=self._batch,
                on_missing_documents="ignore",
            )
            right = right or [score.is_greedy for score in scores]
            totals = [float(w) * score.total for w, score in zip(weights, scores, strict=True)]
            likelihood = fsum(totals) / fsum(map(float, weights))
            if not isfinite(likelihood):
                raise ConfigError(
                    f"The answers' mean log-likelihood under {method!r} is {likelihood}: the model "
                    "or this candidate leaves the number format. Search a narrower range, or load "
                    "the model in a wider format."
                )
        score = float(sum(compress(weights, right), Fraction()) / sum(weights))
        if criterion == "log_likelihood":
            assert likelihood is not None
            score = likelihood
        flags = "".join("1" if is_right else "0" for is_right in right)
        return Outcome(score=score, right=flags, log_likelihood=likelihood)

    def _right(self, method: Method, part: slice) -> list[bool]:
        """Whether the model writes a correct answer, by example."""
        prompts = self._prompts[part]
        answers = self._model.batch(
            prompts,
            method=method,
            max_new_tokens=self._max_new_tokens,
            max_batch_size=self._batch,
            on_missing_documents="ignore",
        )
        texts = [answer.text for answer in answers]
        begun = self._model.begins_thinking(prompts[0])
        if all(answer_after_thinking(text, begun=begun) is None for text in texts):
            raise ConfigError(
                f"All of {len(texts)} answers were cut within the model's thinking, for which a "
                "calibration leaves no room. Take a model, or a chat template, that answers "
                "without thinking, or the criterion 'log_likelihood'."
            )
        return [
            example.is_right(text, begun=begun)
            for example, text in zip(self.examples[part], texts, strict=True)
        ]
