"""How good settings are: a number for a method, higher being better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rag_middle.calibration.examples import Example, ScoringScheme
from rag_middle.calibration.racing import UNSCORED, Race
from rag_middle.errors import CalibrationConfigError
from rag_middle.generation import RagMiddleModel, Score
from rag_middle.methods import Method
from rag_middle.plain_data import check_whole

__all__ = ["Criterion", "ExampleObjective", "Objective", "Outcome"]

#: Any function of a method will do; a search tries to make it large.
Objective = Callable[[Method], float]

#: ``generated_answer``: share of prompts under which the answer that the model writes is right by
#: the task's metric, which is to say that it contains a reference answer; ``exact_match``: share
#: under which greedy decoding would write `Example.answer` word for word from its first token on,
#: read in one pass without decoding; ``log_likelihood``: of `Example.answer`, in nats.
Criterion = Literal["generated_answer", "exact_match", "log_likelihood"]

_PHRASING = 32  # tokens of a generated answer beside the reference answer's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one candidate.

    Attributes:
        score: the objective, over the prompts that were scored.
        complete: false where the candidate was dropped before all prompts were scored.
        right: for each prompt ``"1"`` where it is answered rightly, ``"0"`` where it is not,
            ``"-"`` where that was not tried; empty where the objective has no examples.
        log_likelihood: mean over scored prompts, in nats per answer; None where it was not asked
            for. Of generated answers it is where none is right, so that those that come nearest
            can be told.
    """

    score: float
    complete: bool = True
    right: str = ""
    log_likelihood: float | None = None

    def __post_init__(self) -> None:
        known = self.score, *([] if self.log_likelihood is None else [self.log_likelihood])
        # An objective may well say infinity; a file may say anything.
        if not all(isinstance(each, int | float) and not isinstance(each, bool) for each in known):
            raise TypeError(f"score and log_likelihood must be numbers, got {known}")
        if not isinstance(self.complete, bool) or not isinstance(self.right, str):
            raise TypeError(f"complete={self.complete!r} and right={self.right!r}")

    @property
    def prompts(self) -> int:
        """How many prompts were scored."""
        return len(self.right) - self.right.count(UNSCORED)


class ExampleObjective:
    """Mean over examples by their weights: of the verdicts on generated answers, or on given ones.

    ``exact_match`` and ``log_likelihood`` are read by teacher forcing, in one pass per prompt. An
    answer counts as exactly matched where each of its tokens is the likeliest one after those
    before it, which is to say: where greedy decoding writes it. This is the accuracy of a model
    that answers with nothing but the value. One that answers in sentences, in quotation marks or
    by another of the reference answers scores near zero, whatever it read: there
    ``generated_answer``, which decodes greedily, is the accuracy.

    Args:
        model: that runs; its own method is not used.
        examples: those of the search, and after them those of the held-out check.
        criterion: what the score is.
        max_batch_size: prompts per forward pass.
        template: as in generation.

    Raises:
        UnsupportedGenerationError: `max_batch_size` is no whole number from 1 on.
    """

    def __init__(
        self,
        model: RagMiddleModel,
        examples: Sequence[Example],
        *,
        criterion: Criterion = "exact_match",
        max_batch_size: int = 8,
        template: Literal["auto", "chat", "raw"] = "auto",
    ) -> None:
        # Hundreds of candidates differ in numbers only: that the method reaches the model is
        # proved once, for the winner.
        self._model = RagMiddleModel(
            model.model, model.tokenizer, context_window=model.context_window, self_check=False
        )
        self.examples = tuple(examples)
        self._weights = ScoringScheme.of(self.examples).weights
        self._prompts = [self._model.encode(e.prompt, template=template) for e in self.examples]
        self._answers = [self._model.token_ids(e.answer) for e in self.examples]
        # One bound for all, so that a prompt's answer does not depend on its company.
        self._max_new_tokens = max(map(self._room, range(len(self.examples))), default=1)
        self._criterion = criterion
        check_whole("max_batch_size", max_batch_size, least=1)
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
            race: over these examples: in which order they are tried, a batch at a time, and when
                to give up; none for never, and without effect where verdicts are not compared.
            criterion: instead of the objective's.

        Raises:
            CalibrationConfigError: a race over another number of examples.
        """
        by = criterion or self._criterion
        members = range(start, stop)
        if race is None or by == "log_likelihood":
            # A race is about verdicts, and says nothing about likelihoods.
            return self._outcomes([method], members, by)[0]
        if len(race.reference) != len(members):
            raise CalibrationConfigError(
                f"The race is over {len(race.reference)} examples, and {len(members)} are scored."
            )
        tried: list[int] = []
        verdicts = [UNSCORED] * len(members)
        likelihoods: list[float] = []
        order = race.order
        for at in range(0, len(order), self._batch):
            batch = order[at : at + self._batch]
            scored = [start + index for index in batch]
            right, likely = self._read([method], scored, by)[0]
            for index, verdict in zip(batch, right, strict=True):
                verdicts[index] = verdict
            tried += scored
            likelihoods += likely
            if len(tried) < len(members) and race.lost("".join(verdicts)):
                break
        return self._outcome(method, members, "".join(verdicts), tried, likelihoods, by)

    def outcomes(
        self,
        methods: Sequence[Method],
        start: int,
        stop: int,
        *,
        criterion: Criterion | None = None,
    ) -> list[Outcome]:
        """`outcome` of several candidates, each prompt read once for as many as allow it.

        Bit for bit what they get alone.
        """
        return self._outcomes(methods, range(start, stop), criterion or self._criterion)

    def _outcomes(
        self, methods: Sequence[Method], members: Sequence[int], by: Criterion
    ) -> list[Outcome]:
        return [
            self._outcome(method, members, right, members, likelihoods, by)
            for method, (right, likelihoods) in zip(
                methods, self._read(methods, members, by), strict=True
            )
        ]

    def _read(
        self, methods: Sequence[Method], members: Sequence[int], by: Criterion
    ) -> list[tuple[str, list[float]]]:
        """By method, the verdict on each example and, by teacher forcing, its log-likelihood."""
        if by == "generated_answer":
            return [(self._generated(method, members), []) for method in methods]
        return [
            (
                "".join("1" if score.is_greedy else "0" for score in scores),
                [score.total for score in scores],
            )
            for scores in self._scores(methods, members)
        ]

    def _generated(self, method: Method, members: Sequence[int]) -> str:
        answers = self._model.batch(
            [self._prompts[member] for member in members],
            method=method,
            max_new_tokens=self._max_new_tokens,
            max_batch_size=self._batch,
            on_missing_documents="ignore",
        )
        return "".join(
            "1" if self.examples[member].is_right(answer.text) else "0"
            for member, answer in zip(members, answers, strict=True)
        )

    def _scores(self, methods: Sequence[Method], members: Sequence[int]) -> list[list[Score]]:
        return self._model.score_methods(
            [self._prompts[member] for member in members],
            [self._answers[member] for member in members],
            methods,
            max_batch_size=self._batch,
            on_missing_documents="ignore",
        )

    def _outcome(
        self,
        method: Method,
        members: Sequence[int],
        right: str,
        tried: Sequence[int],
        likelihoods: Sequence[float],
        by: Criterion,
    ) -> Outcome:
        """The outcome of verdicts on `members`, of which `tried` have these likelihoods."""
        complete = len(tried) == len(members)
        if by == "generated_answer" and complete and "1" not in right:
            # Of candidates under which nothing is right, the likelihood says which is nearest.
            likelihoods = [score.total for score in self._scores([method], members)[0]]
            tried = members
        log_likelihood = None
        if likelihoods:
            weights = [self._weights[member] for member in tried]
            weighed = sum(w * each for w, each in zip(weights, likelihoods, strict=True))
            log_likelihood = weighed / sum(weights)
        if by == "log_likelihood":
            assert log_likelihood is not None  # all were read
            score = log_likelihood
        else:
            verdicts = [
                (self._weights[member], verdict)
                for member, verdict in zip(members, right, strict=True)
                if verdict != UNSCORED
            ]
            won = sum(weight for weight, verdict in verdicts if verdict == "1")
            score = won / sum(weight for weight, _ in verdicts)
        return Outcome(score=score, complete=complete, right=right, log_likelihood=log_likelihood)

    def _room(self, index: int) -> int:
        """Most tokens of an example's generated answer."""
        room = len(self._answers[index]) + _PHRASING
        return min(room, self.examples[index].max_new_tokens or room)
