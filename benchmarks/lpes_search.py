"""Prompts that the LPES search needs to reach what the paper's plain algorithm reaches.

    python benchmarks/lpes_search.py [--model FOLDER] [--seeds 3]

The plain algorithm scores every individual on every prompt, curves that it has seen before too.
Ours scores no curve twice and drops clear losers. Counted are prompts that go through the model
until the fitness is reached with which the plain algorithm ends. Decoding is not counted for the
plain algorithm, to its favour. ``ratio`` is to what it needs to get there, ``ratio_of_all`` to all
that it runs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

import torch

from rag_middle.attention import model_traits
from rag_middle.calibration import (
    CurveSearch,
    ExampleObjective,
    Outcome,
    Race,
    draw_examples,
    evolve,
)
from rag_middle.calibration.genetic import Genome
from rag_middle.evaluation import InventedDocuments
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import LPES
from rag_middle.reader import reader_path


class Counted:
    """Scores curves, and remembers after how many prompts which fitness was reached."""

    def __init__(self, objective: ExampleObjective, settings: CurveSearch, layers: int) -> None:
        self.objective, self.settings, self.layers = objective, settings, layers
        self.known: dict[tuple[float, ...], Outcome] = {}
        self.prompts = 0
        self.reached: list[tuple[int, float]] = []

    def __call__(self, genomes: Sequence[Genome], race: Race | None) -> list[Outcome]:
        outcomes = []
        for genome in genomes:
            factors = self.settings.factors(genome, self.layers)
            if factors not in self.known:
                count = len(self.objective.examples)
                self.known[factors] = self.objective.outcome(LPES(factors=factors), 0, count, race)
            outcome = self.known[factors]  # asked again, it is not computed again, but counted
            self.prompts += len(outcome.right)
            if outcome.complete:
                self.reached.append((self.prompts, outcome.score))
            outcomes.append(outcome)
        return outcomes

    def prompts_until(self, fitness: float) -> int | None:
        return next((after for after, score in self.reached if score >= fitness), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="default: the bundled reader")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--generations", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = RagMiddleModel.from_pretrained(arguments.model or reader_path())
    layers = model_traits(model.model).num_layers
    examples, _ = draw_examples(
        InventedDocuments(cited=arguments.model is None),
        questions=arguments.questions,
        held_out=2,
        weights=(0.2, 0.3, 0.5),
        seed=0,
        chat=bool(model.tokenizer.chat_template),
    )
    objective = ExampleObjective(model, examples)
    for seed in range(arguments.seeds):
        runs = {}
        for name in ("plain", "ours"):
            settings = CurveSearch(generations=arguments.generations, plain=name == "plain")
            runs[name] = Counted(objective, settings, layers)
            evolve(settings, layers, seed, runs[name])
        goal = max(score for _, score in runs["plain"].reached)
        ours = runs["ours"].prompts_until(goal)
        told = {
            "seed": seed,
            "fitness": goal,
            "plain_in_all": runs["plain"].prompts,
            "plain_until_reached": runs["plain"].prompts_until(goal),
            "ours_until_reached": ours,
            "ours_in_all": runs["ours"].prompts,
            "ratio": ours and round(ours / (runs["plain"].prompts_until(goal) or 1), 3),
            "ratio_of_all": ours and round(ours / runs["plain"].prompts, 3),
        }
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
