"""What a search will take, from a few prompts that are timed before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Literal

from rag_middle.calibration.examples import Example
from rag_middle.calibration.objective import Criterion, ExampleObjective
from rag_middle.calibration.searches import Search
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import Method, NoMethod

__all__ = ["Estimate", "Pace", "estimate", "timed"]

_CHECKED = 2  # methods on held-out prompts: none and the winner


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a search will take at most.

    Attributes:
        candidates: to score.
        questions: that they are asked, each at several places; 0 for an objective without
            examples.
        prompts: that they are scored on, the held-out check included. Where candidates share the
            model's reading of prompts, fewer are read. 0 for an objective without examples.
        seconds: with the workers that there are, as if no candidate were dropped early; None where
            part of the search was known already.
        criterion: what they are compared by; None for an objective without examples.
        note: when the criterion says little about this model, and what to use then.
    """

    candidates: int
    questions: int
    prompts: int
    seconds: float | None
    criterion: Criterion | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds that one process takes.

    Attributes:
        alone: for a prompt under the unmodified model.
        candidate: for a prompt under one candidate, scored with as many others as in the search.
        token: for a token of text that is read before candidates are known.
    """

    alone: float
    candidate: float
    token: float


def estimate(
    model: RagMiddleModel,
    search: Search,
    examples: Sequence[Example],
    held_out: int,
    workers: int,
    pace: Pace | None,
    criterion: Criterion,
    *,
    chat: bool = False,
) -> Estimate:
    """What a search on examples will take.

    Args:
        model: that is fitted.
        search: what is tried.
        examples: of the search.
        held_out: prompts of the check.
        workers: that share the candidates; texts are read by this process alone.
        pace: of one process; None where part of the search is known.
        criterion: what candidates are compared by.
        chat: the model answers in turns of a chat.
    """
    candidates = search.most_candidates(model)
    scored, checked = candidates * len(examples), _CHECKED * held_out
    seconds = None
    if pace:
        seconds = (
            search.tokens_read(model) * pace.token
            + scored * pace.candidate / workers
            + checked * pace.alone / min(workers, _CHECKED)
        )
    note = None
    if criterion == "exact_match" and chat:
        note = (
            "exact_match counts answers that are written word for word from the first token on. "
            "This model has a chat template: where it answers in sentences, every candidate scores "
            "near zero. Compare by generated_answer."
        )
    return Estimate(
        candidates=candidates,
        questions=len({example.question for example in examples}),
        prompts=scored + checked,
        seconds=seconds,
        criterion=criterion,
        note=note,
    )


def timed(
    model: RagMiddleModel,
    search: Search,
    examples: Sequence[Example],
    criterion: Criterion,
    *,
    max_batch_size: int = 8,
    template: Literal["auto", "chat", "raw"] = "auto",
) -> Pace:
    """The pace in this process, from one batch.

    Workers take time to start and to load the model, which their first candidate would be charged
    with; and a candidate that shares the reading of prompts with others takes a fraction of one
    that does not. So both are timed here, under methods like those that are going to be tried.
    """
    few = examples[:max_batch_size]
    objective = ExampleObjective(
        model, few, criterion=criterion, max_batch_size=max_batch_size, template=template
    )
    count = len(few)
    tokens = sum(model.count_tokens(each.prompt, template=template) for each in few)
    objective.outcome(NoMethod(), 0, 1)  # what only the first pass takes
    alone = _seconds(objective, [NoMethod()], count)
    like = search.like_candidates(model)
    candidate = alone
    if like:
        objective.outcome(like[0], 0, 1)
        candidate = _seconds(objective, like, count) / len(like)
    return Pace(alone=alone / count, candidate=candidate / count, token=alone / tokens)


def _seconds(objective: ExampleObjective, methods: Sequence[Method], count: int) -> float:
    begun = perf_counter()
    objective.outcomes(methods, 0, count)
    return perf_counter() - begun
