"""How good settings are: a number for a method, higher being better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rag_middle.calibration.examples import Example
from rag_middle.calibration.racing import UNSCORED, Race
from rag_middle.errors import CalibrationConfigError
from rag_middle.generation import RagMiddleModel, Score
from rag_middle.generation.options import check_whole
from rag_middle.methods import Method

__all__ = ["Criterion", "ExampleObjective", "Objective", "Outcome"]

#: Any function of a method will do; a search tries to make it large.
Objective = Callable[[Method], float]

#: ``exact_match``: share of answers that greedy decoding writes word for word;
#: ``log_likelihood``: nats per answer.
Criterion = Literal["exact_match", "log_likelihood"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one candidate.

    Attributes:
        score: the objective, over the examples that were scored.
        complete: false where the candidate was dropped before all examples were scored.
        right: for each example ``"1"`` where greedy decoding writes the answer, ``"0"`` where it
            does not, ``"-"`` where that was not tried; empty where the objective has no examples.
        log_likelihood: mean over scored examples, in nats per answer.
    """

    score: float
    complete: bool = True
    right: str = ""
    log_likelihood: float | None = None

    @property
    def examples(self) -> int:
        """How many examples were scored."""
        return len(self.right) - self.right.count(UNSCORED)


class ExampleObjective:
    """Mean over examples, scored by teacher forcing: one pass, no decoding.

    An answer counts as exactly matched where each of its tokens is the likeliest one after those
    before it, which is to say: where greedy decoding writes it.

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
        self._prompts = [self._model.encode(e.prompt, template=template) for e in self.examples]
        self._answers = [self._model.token_ids(e.answer) for e in self.examples]
        self._criterion = criterion
        check_whole("max_batch_size", max_batch_size, least=1)
        self._batch = max_batch_size

    def __call__(self, method: Method) -> float:
        """The mean over all examples."""
        return self.outcome(method, 0, len(self.examples)).score

    def outcome(self, method: Method, start: int, stop: int, race: Race | None = None) -> Outcome:
        """The mean over examples `start` to `stop`, or over fewer where a race is lost.

        Args:
            method: a candidate.
            start: first example.
            stop: the one after the last.
            race: over these examples: in which order they are tried, a batch at a time, and when
                to give up; none for never, and without effect where verdicts are not compared.

        Raises:
            CalibrationConfigError: a race over another number of examples.
        """
        if race is None or self._criterion != "exact_match":
            # A race is about verdicts, and says nothing about likelihoods.
            return self._outcome(self._scores([method], range(start, stop))[0])
        if len(race.reference) != stop - start:
            raise CalibrationConfigError(
                f"The race is over {len(race.reference)} examples, and {stop - start} are scored."
            )
        scores: list[Score | None] = [None] * (stop - start)
        order = race.order
        for batch in range(0, len(order), self._batch):
            members = order[batch : batch + self._batch]
            found = self._scores([method], [start + member for member in members])[0]
            for member, score in zip(members, found, strict=True):
                scores[member] = score
            if None in scores and race.lost(_verdicts(scores)):
                break
        return self._outcome(scores)

    def outcomes(self, methods: Sequence[Method], start: int, stop: int) -> list[Outcome]:
        """`outcome` of several candidates, each prompt read once for as many as allow it.

        Bit for bit what they get alone.
        """
        return [self._outcome(scores) for scores in self._scores(methods, range(start, stop))]

    def _scores(self, methods: Sequence[Method], members: Sequence[int]) -> list[list[Score]]:
        return self._model.score_methods(
            [self._prompts[member] for member in members],
            [self._answers[member] for member in members],
            methods,
            max_batch_size=self._batch,
            on_missing_documents="ignore",
        )

    def _outcome(self, scores: Sequence[Score | None]) -> Outcome:
        right = _verdicts(scores)
        known = [score for score in scores if score is not None]
        mean = sum(score.total for score in known) / len(known)
        share = right.count("1") / len(known)
        return Outcome(
            score=share if self._criterion == "exact_match" else mean,
            complete=len(known) == len(scores),
            right=right,
            log_likelihood=mean,
        )


def _verdicts(scores: Sequence[Score | None]) -> str:
    return "".join(
        UNSCORED if score is None else "1" if score.is_greedy else "0" for score in scores
    )
