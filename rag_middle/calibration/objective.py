"""How good settings are: a number for a method, higher being better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rag_middle.calibration.examples import Example
from rag_middle.calibration.racing import Race, ended
from rag_middle.generation import RagMiddleModel, Score
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
        right: for each scored example ``"1"`` where greedy decoding writes the answer, else
            ``"0"``; empty where the objective has no examples.
        log_likelihood: mean over scored examples, in nats per answer.
    """

    score: float
    complete: bool = True
    right: str = ""
    log_likelihood: float | None = None


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
        self._options: dict[str, Any] = {"max_batch_size": max_batch_size}

    def __call__(self, method: Method) -> float:
        """The mean over all examples."""
        return self.outcome(method, 0, len(self.examples)).score

    def outcome(self, method: Method, start: int, stop: int, race: Race | None = None) -> Outcome:
        """The mean over examples `start` to `stop`, or over fewer where a race is lost.

        Args:
            method: a candidate.
            start: first example.
            stop: the one after the last.
            race: whether and when to give up; none for never, and without effect where verdicts
                are not what is compared.
        """
        if self._criterion != "exact_match":
            race = None  # a race is about verdicts, and says nothing about likelihoods
        scores: list[Score] = []
        for at in race.stages(stop - start) if race else (stop - start,):
            scores += self._scores([method], start + len(scores), start + at)[0]
            if race and at < stop - start and ended(race, _verdicts(scores)):
                break
        return self._outcome(scores, complete=len(scores) == stop - start)

    def outcomes(self, methods: Sequence[Method], start: int, stop: int) -> list[Outcome]:
        """`outcome` of several candidates, each prompt read once for as many as allow it.

        Bit for bit what they get alone.
        """
        scored = self._scores(methods, start, stop)
        return [self._outcome(scores, complete=True) for scores in scored]

    def _scores(self, methods: Sequence[Method], start: int, stop: int) -> list[list[Score]]:
        return self._model.score_methods(
            self._prompts[start:stop],
            self._answers[start:stop],
            methods,
            on_missing_documents="ignore",
            **self._options,
        )

    def _outcome(self, scores: Sequence[Score], *, complete: bool) -> Outcome:
        right = _verdicts(scores)
        mean = sum(score.total for score in scores) / len(scores)
        share = right.count("1") / len(right)
        return Outcome(
            score=share if self._criterion == "exact_match" else mean,
            complete=complete,
            right=right,
            log_likelihood=mean,
        )


def _verdicts(scores: Sequence[Score]) -> str:
    return "".join("1" if score.is_greedy else "0" for score in scores)
