"""What a search will cost, from a few prompts that are timed before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from rag_middle.calibration.examples import Example
from rag_middle.calibration.objective import Criterion
from rag_middle.calibration.scoring import Job, Team
from rag_middle.calibration.searches.base import Search
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import Method, NoMethod


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a search will cost at most.

    Attributes:
        candidates: to score.
        questions: that they are asked, each at several positions.
        prompts: that they are scored on, held-out ones included.
        seconds: that are left, with the available workers.
        criterion: what candidates are compared by.
        known: scores that a search that was stopped has already, of as many as `progress` counts.
    """

    candidates: int
    questions: int
    prompts: int
    seconds: float
    criterion: Criterion
    known: int = 0


def estimate_cost(
    model: RagMiddleModel,
    search: Search,
    examples: Sequence[Example],
    held_out: Sequence[Example],
    team: Team,
    *,
    criterion: Criterion,
    held_out_criterion: Criterion,
    known: int = 0,
    max_batch_size: int = 8,
) -> Estimate:
    """Time a batch on every worker of the team at once, as in the search, and multiply.

    Scores that are `known` need no more time.
    """
    batch = examples[:max_batch_size]

    def seconds(method: Method, by: Criterion, stop: int = len(batch)) -> float:
        """Seconds that one worker takes for a prompt while all of them work."""
        start = perf_counter()
        for _ in team.results([Job(method=method, stop=stop, criterion=by)] * team.count):
            pass
        return (perf_counter() - start) / stop

    costly = search.costly_method(model)
    seconds(costly, criterion, stop=1)  # not for the time: workers load the model
    per_prompt = seconds(costly, criterion)
    of_unmodified = of_held_out = seconds(NoMethod(), criterion)
    if held_out and held_out_criterion != criterion:
        of_held_out = max(seconds(m, held_out_criterion) for m in (NoMethod(), costly))
    candidates = search.max_candidates(model)
    left = max(0, candidates - known)
    tokens = sum(model.count_tokens(example.prompt) for example in batch)
    return Estimate(
        candidates=candidates,
        questions=len({example.question for example in examples}),
        prompts=candidates * len(examples) + 2 * len(held_out),
        seconds=(
            # Texts are read by this process, and the unmodified model is scored by one worker.
            search.preparation_tokens(model) * of_unmodified * len(batch) / tokens
            + len(examples) * of_unmodified
            + left * len(examples) * per_prompt / team.count
            + 2 * len(held_out) * of_held_out / min(team.count, 2)
        ),
        criterion=criterion,
        known=known,
    )
