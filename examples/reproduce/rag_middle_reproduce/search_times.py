"""What a generation of LPES's search takes, by step (arXiv:2606.27705, table 10)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

from rag_middle import RagMiddleModel
from rag_middle.attention import model_traits
from rag_middle.calibration.curves import CurveSearch, children, mutant
from rag_middle.evaluation import LabelledMethod, position, spread_positions
from rag_middle_reproduce.tables import markdown_table
from rag_middle_reproduce.views import Asked, Shown, View


@dataclass(frozen=True, kw_only=True)
class SearchTimesView(View):
    """Seconds of a generation's steps.

    Attributes:
        questions: that a curve's fitness is the accuracy on, at three positions each.
        timed: prompts that are asked; the fitness takes as much longer as it has more.
    """

    questions: int = 200
    timed: int = 8

    def tried_out(self) -> SearchTimesView:
        return replace(self, timed=1)

    def shown(
        self, model: RagMiddleModel, asked: Sequence[Asked], methods: Sequence[LabelledMethod]
    ) -> Iterator[Shown]:
        """A table for each task."""
        search, draw = CurveSearch(as_in_paper=True), random.Random(0)
        layers = model_traits(model.model).num_layers
        first = next(search.evolve(layers, 0))
        genomes = [
            tuple((int(x), round(10 * y)) for x, y in candidate.details["control_points"])
            for candidate in first
        ]
        parents = genomes[: search.parents]
        for label, task, measurement in asked:
            gold = position(spread_positions(task.num_positions, 3)[1])
            prompts = [task.prompt(item, gold) for item in task.items(self.timed, 0)]
            curves = search.mutants + 2 * search.crossovers
            steps: dict[str, tuple[Callable[[], Any], float]] = {
                "assign": (lambda: [search.factors(g, layers) for g in genomes], 1),
                "mutate": (lambda: [mutant(g, layers, draw) for g in genomes[: search.mutants]], 1),
                "cross": (lambda: [children(parents, draw) for _ in range(search.crossovers)], 1),
                "fitness": (
                    partial(
                        model.batch,
                        prompts,
                        method=first[0].method,
                        max_new_tokens=measurement.max_new_tokens or task.max_new_tokens,
                    ),
                    curves * 3 * self.questions / len(prompts),
                ),
            }
            seconds = {name: _seconds(step) * times for name, (step, times) in steps.items()}
            table = markdown_table(
                ["seconds of a generation", *seconds],
                [["", *(f"{s:.3g}" for s in seconds.values())]],
            )
            yield Shown(name=label, numbers={"task": label, **seconds}, table=table)


def _seconds(step: Callable[[], Any]) -> float:
    start = perf_counter()
    step()
    return perf_counter() - start
