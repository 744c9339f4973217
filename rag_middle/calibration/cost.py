"""What a search will cost, from a few prompts that are timed before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from time import perf_counter

from rag_middle.calibration.examples import Example
from rag_middle.calibration.objective import Criterion, ExampleObjective
from rag_middle.calibration.searches import Search
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import Method, NoMethod
from rag_middle.tokens import TemplateName

HELD_OUT_METHODS = 2  # none and the winner


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a search will cost at most.

    Attributes:
        candidates: to score.
        questions: that they are asked, each at several positions; 0 for an objective without
            examples.
        prompts: that they are scored on, held-out ones included. Fewer are read where candidates
            share the prefill. 0 for an objective without examples.
        seconds: with the available workers, if no candidate is dropped early; None where part of
            the search was done before.
        criterion: what they are compared by; None for an objective without examples.
        note: a warning where the criterion suits this model badly, with the one to use.
        known: candidates that a search that was stopped has scored.
    """

    candidates: int
    questions: int
    prompts: int
    seconds: float | None
    criterion: Criterion | None = None
    note: str | None = None
    known: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds that one process takes.

    Attributes:
        unmodified: per prompt, for the unmodified model.
        held_out: per prompt of the check on held-out questions, where answers may be generated.
        candidate: per prompt, for one candidate, scored with as many others as in the search.
        token: per token of text that is read before candidates are known.
    """

    unmodified: float
    held_out: float
    candidate: float
    token: float


def estimate_cost(
    model: RagMiddleModel,
    search: Search,
    examples: Sequence[Example],
    criterion: Criterion,
    pace: Pace | None,
    *,
    held_out: int = 0,
    workers: int = 1,
    chat: bool = False,
) -> Estimate:
    """What a search on examples will cost.

    Args:
        pace: of one process; None where part of the search was done before.
        workers: that share the candidates; texts are read by this process alone.
        chat: the model answers as a chat.
    """
    candidates = search.max_candidates(model)
    prompts, held_out_prompts = candidates * len(examples), HELD_OUT_METHODS * held_out
    seconds = note = None
    if pace:
        once = 1 + search.reads_examples  # the baseline, which one worker scores while others wait
        seconds = (
            search.preparation_tokens(model) * pace.token
            + once * len(examples) * pace.unmodified
            + prompts * pace.candidate / workers
            + held_out_prompts * pace.held_out / min(workers, HELD_OUT_METHODS)
        )
    if criterion == "exact_match" and chat:
        note = (
            "exact_match counts answers that are written word for word from the first token on. "
            "This model has a chat template: where it answers in sentences, every candidate scores "
            "near zero. Compare by generated_answer."
        )
    return Estimate(
        candidates=candidates,
        questions=len({example.question for example in examples}),
        prompts=prompts + held_out_prompts,
        seconds=seconds,
        criterion=criterion,
        note=note,
    )


def measure_pace(
    model: RagMiddleModel,
    search: Search,
    examples: Sequence[Example],
    criterion: Criterion,
    *,
    held_out_criterion: Criterion | None = None,
    workers: int = 1,
    max_batch_size: int = 8,
    template: TemplateName = "auto",
) -> Pace:
    """The pace of this process on one batch.

    Not that of the workers, whose first candidate also waits for the model to load. Candidates are
    timed as many at a time as in the search: those that share the prefill of a prompt take a
    fraction of the time.

    Args:
        held_out_criterion: of the check on held-out questions, if it is another one.
        workers: that share the candidates, so that fewer of them share a prefill.
    """
    batch = examples[:max_batch_size]
    objective = ExampleObjective(
        model, batch, criterion=criterion, max_batch_size=max_batch_size, template=template
    )

    def seconds(methods: Sequence[Method], by: Criterion = criterion) -> float:
        start = perf_counter()
        objective.outcomes(methods, 0, len(batch), criterion=by)
        return perf_counter() - start

    objective.outcome(NoMethod(), 0, 1)  # not timed: the first pass takes longer
    unmodified = candidate = held_out = seconds([NoMethod()])
    if held_out_criterion not in (None, criterion):
        held_out = seconds([NoMethod()], held_out_criterion)
    of_a_worker = ceil(search.max_candidates(model) / workers)
    methods = search.typical_candidates(model)[:of_a_worker]
    if methods:
        objective.outcome(methods[0], 0, 1)
        candidate = seconds(methods) / len(methods)
    tokens = sum(model.count_tokens(e.prompt, template=template) for e in batch)
    return Pace(
        unmodified=unmodified / len(batch),
        held_out=held_out / len(batch),
        candidate=candidate / len(batch),
        token=unmodified / tokens,
    )
