"""How good settings are: a number for a method, higher being better."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal, NamedTuple

from rag_middle.calibration.examples import Example, ScoringScheme
from rag_middle.calibration.racing import UNSCORED, Race
from rag_middle.errors import ConfigError
from rag_middle.generation import Prompt, RagMiddleModel, Score
from rag_middle.methods import Method
from rag_middle.plain_data import check_whole, is_finite_number
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
class Outcome:
    """The score of one candidate.

    Attributes:
        score: the objective, over the prompts that were scored.
        complete: false where the candidate was dropped before all prompts were scored.
        right: for each prompt ``"1"`` for a right answer, ``"0"`` for a wrong one, ``"-"`` where
            it was not scored; empty where the objective has no examples.
        log_likelihood: mean over scored prompts, in nats per answer; None where it was not
            computed. For generated answers it is computed where none is right, to tell those
            candidates apart.

    Raises:
        TypeError: a field of the wrong type.
        ValueError: a number that is not finite, or other characters in `right`.
    """

    score: float
    complete: bool = True
    right: str = ""
    log_likelihood: float | None = None

    def __post_init__(self) -> None:
        # An objective may return anything, and a file may hold anything.
        for number in (self.score, 0.0 if self.log_likelihood is None else self.log_likelihood):
            if not is_finite_number(number):
                raise ValueError(f"score and log_likelihood must be finite numbers, got {number!r}")
        if not isinstance(self.complete, bool) or not isinstance(self.right, str):
            raise TypeError(f"complete={self.complete!r} and right={self.right!r}")
        if not {"0", "1", UNSCORED}.issuperset(self.right):
            raise ValueError(f"right={self.right!r} is not of 0, 1 and {UNSCORED}")

    @property
    def prompts(self) -> int:
        """How many prompts were scored."""
        return len(self.right) - self.right.count(UNSCORED)


class _Verdict(NamedTuple):
    """On one example; the log-likelihood, in nats, is known from teacher forcing only."""

    right: bool
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
        model: to run; its own method is not used.
        examples: those of the search, followed by the held-out ones.
        criterion: what the score is.
        max_batch_size: prompts per forward pass.
        template: as in generation.

    Raises:
        UnsupportedGenerationError: `max_batch_size` is not a whole number of at least 1.
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
        check_whole("max_batch_size", max_batch_size, least=1)
        self._model = _without_self_check(model)
        self.examples = tuple(examples)
        self._weights = ScoringScheme.of(self.examples).weights
        self._prompts = [self._model.encode(e.prompt, template=template) for e in self.examples]
        self._answers = [self._model.token_ids(e.answer) for e in self.examples]
        limits = [len(answer) + _PHRASING for answer in self._answers]
        limits = [
            min(limit, e.max_new_tokens or limit)
            for limit, e in zip(limits, self.examples, strict=True)
        ]
        # One limit for all, so that a prompt's answer does not depend on the rest of its batch.
        self._max_new_tokens = max(limits, default=1)
        self._criterion = criterion
        self._batch = max_batch_size

    def __call__(self, method: Method) -> float:
        """The mean over all examples."""
        return self.outcome(method, 0, len(self.examples)).score

    def outcome(
        self,
        method: Method,
        start: int,
        stop: int,
        race: Race | None = None,
        *,
        criterion: Criterion | None = None,
    ) -> Outcome:
        """The mean over examples `start` to `stop`, or over fewer where a race is lost.

        Args:
            method: a candidate.
            start: first example.
            stop: the one after the last.
            race: over these examples: in which order they are scored, a batch at a time, and when
                to give up; without effect on log-likelihoods, which are no verdicts.
            criterion: instead of the objective's.

        Raises:
            ConfigError: a race over another number of examples.
        """
        criterion = criterion or self._criterion
        if race is None or criterion == "log_likelihood":
            return self.outcomes([method], start, stop, criterion=criterion)[0]
        members = range(start, stop)
        if len(race.reference) != len(members):
            raise ConfigError(
                f"The race is over {len(race.reference)} examples, and {len(members)} are scored."
            )
        verdicts: dict[int, _Verdict] = {}
        order = race.order
        for first in range(0, len(order), self._batch):
            batch = [start + index for index in order[first : first + self._batch]]
            verdicts |= self._verdicts([method], batch, criterion)[0]
            if len(verdicts) < len(members) and race.is_lost(_right(members, verdicts)):
                break
        return self._outcome(method, members, verdicts, criterion)

    def outcomes(
        self,
        methods: Sequence[Method],
        start: int,
        stop: int,
        *,
        criterion: Criterion | None = None,
    ) -> list[Outcome]:
        """`outcome` of several candidates, which share the prefill of a prompt where they can.

        Bit for bit what they get alone.
        """
        criterion = criterion or self._criterion
        members = range(start, stop)
        return [
            self._outcome(method, members, verdicts, criterion)
            for method, verdicts in zip(
                methods, self._verdicts(methods, members, criterion), strict=True
            )
        ]

    def _verdicts(
        self, methods: Sequence[Method], indices: Sequence[int], criterion: Criterion
    ) -> list[dict[int, _Verdict]]:
        """For each method, the verdicts by index of the example."""
        if criterion != "generated_answer":
            return [
                {
                    index: _Verdict(score.is_greedy, score.total)
                    for index, score in zip(indices, scores, strict=True)
                }
                for scores in self._scores(methods, indices)
            ]
        verdicts = []
        for method in methods:
            answers = self._model.batch(
                [self._prompts[index] for index in indices],
                method=method,
                max_new_tokens=self._max_new_tokens,
                max_batch_size=self._batch,
                on_missing_documents="ignore",
            )
            texts = [answer.text for answer in answers]
            begun = bool(indices) and self._model.begins_thinking(self._prompts[indices[0]])
            if texts and all(answer_after_thinking(text, begun=begun) is None for text in texts):
                raise ConfigError(
                    f"All of {len(texts)} answers were cut within the model's thinking, for which "
                    "a calibration leaves no room. Take a model, or a chat template, that answers "
                    "without thinking, or the criterion 'log_likelihood'."
                )
            verdicts.append(
                {
                    index: _Verdict(self.examples[index].is_right(answer.text, begun=begun))
                    for index, answer in zip(indices, answers, strict=True)
                }
            )
        return verdicts

    def _scores(self, methods: Sequence[Method], indices: Sequence[int]) -> list[list[Score]]:
        return self._model.score_methods(
            [self._prompts[index] for index in indices],
            [self._answers[index] for index in indices],
            methods,
            max_batch_size=self._batch,
            on_missing_documents="ignore",
        )

    def _outcome(
        self,
        method: Method,
        members: range,
        verdicts: Mapping[int, _Verdict],
        criterion: Criterion,
    ) -> Outcome:
        """The outcome on `members`, of which those in `verdicts` were scored, in that order."""
        complete = len(verdicts) == len(members)
        total = sum(self._weights[index] for index in verdicts)
        likelihoods = {index: verdict.log_likelihood for index, verdict in verdicts.items()}
        right_weight = sum(self._weights[index] for index, v in verdicts.items() if v.right)
        if criterion == "generated_answer" and complete and not right_weight:
            # Of candidates under which nothing is right, the likelihood says which is nearest.
            [scores] = self._scores([method], members)
            likelihoods = {i: score.total for i, score in zip(members, scores, strict=True)}
        weighted = [
            self._weights[index] * likelihood
            for index, likelihood in likelihoods.items()
            if likelihood is not None
        ]
        log_likelihood = sum(weighted) / total if weighted else None
        if log_likelihood is not None and not isfinite(log_likelihood):
            raise ConfigError(
                f"The answers' mean log-likelihood under {method!r} is {log_likelihood}: the model "
                "or this candidate leaves the number format. Search a narrower range, or load the "
                "model in a wider format."
            )
        score = right_weight / total
        if criterion == "log_likelihood":
            assert log_likelihood is not None  # all were read
            score = log_likelihood
        return Outcome(
            score=score,
            complete=complete,
            right=_right(members, verdicts),
            log_likelihood=log_likelihood,
        )


def _right(members: range, verdicts: Mapping[int, _Verdict]) -> str:
    """As in `Outcome.right`."""
    return "".join(
        str(int(verdicts[index].right)) if index in verdicts else UNSCORED for index in members
    )


class EntropyObjective:
    """Minus the mean entropy, in nats, of the first answer token.

    ZeroTuning (arXiv:2505.11739) has an unsupervised variant that minimises the entropy of what
    the model gives out; over which tokens it is taken there has not been checked. A model can be
    sure of a wrong answer: check the result on questions whose answers are known.

    Args:
        model: to run; its own method is not used.
        prompts: without answers.
        template: as in generation.

    Raises:
        ConfigError: there are no prompts.
    """

    def __init__(
        self,
        model: RagMiddleModel,
        prompts: Sequence[Prompt],
        *,
        template: TemplateName = "auto",
    ) -> None:
        if not prompts:
            raise ConfigError("An entropy needs prompts to take it of: give some.")
        self._model = _without_self_check(model)
        self._prompts = [self._model.encode(prompt, template=template) for prompt in prompts]

    def __call__(self, method: Method) -> float:
        """Higher is surer, at most 0."""
        total = 0.0
        for prompt in self._prompts:
            logits = self._model.logits(prompt, method=method, on_missing_documents="ignore")
            log_probabilities = logits.double().log_softmax(-1)
            total += float((log_probabilities.exp() * log_probabilities).nansum())
        return total / len(self._prompts)


def _without_self_check(model: RagMiddleModel) -> RagMiddleModel:
    """The model under no method.

    Hundreds of candidates differ in numbers only: that the method reaches the model is checked
    once, for the winner.
    """
    return RagMiddleModel(
        model.model,
        model.tokenizer,
        context_window=model.context_window,
        self_check=False,
        kernels=model.kernels,
    )
