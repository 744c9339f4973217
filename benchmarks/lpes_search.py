"""What the LPES search needs to reach what the paper's plain algorithm reaches.

    python benchmarks/lpes_search.py [--model FOLDER] [--seeds 0 1 2] [--state FOLDER]

The plain algorithm scores every child on every prompt, curves that it has scored before too. Ours
scores no curve twice, scores the most promising of several children, and drops clear losers. Both
are given the same questions, those of `rag-middle calibrate --method lpes`, and are counted until
they reach the fitness with which the plain algorithm ends:

of all
    Prompts that go through the model: ours until it is there, to all of the plain algorithm's,
    which is what it costs to get that result from it.
of needed
    To the plain algorithm's until it was first there, which nobody knows before it has ended.

The paper decodes answers where ours reads them in one pass. That is not counted.

Traces of a seed are kept in ``--state`` and not computed again.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from reporting import facts, report

from rag_middle.attention import model_traits
from rag_middle.calibration import (
    CurveSearch,
    ExampleObjective,
    Outcome,
    Race,
    draw_examples,
    evolve,
)
from rag_middle.calibration.examples import digest
from rag_middle.calibration.genetic import Genome
from rag_middle.evaluation import InventedDocuments
from rag_middle.generation import RagMiddleModel, model_facts
from rag_middle.methods import LPES
from rag_middle.reader import reader_path

#: Prompts so far, and the fitness of the curve that was then scored completely.
Trace = list[tuple[int, float]]


class Counted:
    """Scores curves, and remembers after how many prompts which fitness was reached."""

    def __init__(self, objective: ExampleObjective, settings: CurveSearch, layers: int) -> None:
        self.objective, self.settings, self.layers = objective, settings, layers
        self.known: dict[tuple[float, ...], Outcome] = {}
        self.prompts = 0
        self.dropped = 0
        self.trace: Trace = []

    def __call__(self, genomes: Sequence[Genome], race: Race | None) -> list[Outcome]:
        outcomes = []
        for genome in genomes:
            factors = self.settings.factors(genome, self.layers)
            if factors not in self.known:
                count = len(self.objective.examples)
                self.known[factors] = self.objective.outcome(LPES(factors=factors), 0, count, race)
            outcome = self.known[factors]  # asked again, it is not computed again, but counted
            self.prompts += outcome.examples
            self.dropped += not outcome.complete
            if outcome.complete:
                self.trace.append((self.prompts, outcome.score))
            outcomes.append(outcome)
        return outcomes


def searched(
    objective: ExampleObjective, layers: int, seed: int, settings: CurveSearch
) -> dict[str, Any]:
    """One search, as it goes into the state."""
    counted = Counted(objective, settings, layers)
    evolve(settings, layers, seed, counted)
    return {"trace": counted.trace, "prompts": counted.prompts, "dropped": counted.dropped}


def prompts_until(fitness: float, trace: Trace) -> int | None:
    """Prompts after which a fitness was reached; None where it never was."""
    return next((after for after, score in trace if score >= fitness), None)


def compared(seed: int, ours: dict[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    """One row of the table."""
    goal = max(score for _, score in plain["trace"])
    until = prompts_until(goal, ours["trace"])
    needed = prompts_until(goal, plain["trace"])
    assert needed is not None

    def ratio(part: float | None, whole: float) -> float | None:
        return None if part is None else round(part / whole, 3)

    return {
        "seed": seed,
        "fitness": goal,
        "ours_best": max(score for _, score in ours["trace"]),
        "plain_all": plain["prompts"],
        "plain_needed": needed,
        "ours_until": until,
        "ours_all": ours["prompts"],
        "ours_dropped": ours["dropped"],
        "of_all": ratio(until, plain["prompts"]),
        "of_needed": ratio(until, needed),
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown table with the medians of the ratios below."""
    lines = [
        "| seed | fitness | plain, in all | plain, needed | ours, until there | ours, in all | "
        "of all | of needed |",
        "| ---: |" + " ---: |" * 7,
    ]
    ratios = ("of_all", "of_needed")
    for row in rows:
        counts = [
            "never" if row[name] is None else f"{row[name]:,}"
            for name in ("plain_all", "plain_needed", "ours_until", "ours_all")
        ]
        shown = ["" if row[name] is None else f"{row[name]:.2f}" for name in ratios]
        cells = [str(row["seed"]), f"{row['fitness']:.4f}", *counts, *shown]
        lines.append("| " + " | ".join(cells) + " |")
    # Where it is never reached, the ratio is above all others.
    medians = [
        statistics.median(float("inf") if row[name] is None else row[name] for row in rows)
        for name in ratios
    ]
    cells = ["median", *[""] * 5, *(f"{median:.2f}" for median in medians)]
    lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="default: the bundled reader")
    parser.add_argument("--questions", type=int, default=80)
    parser.add_argument("--documents", type=int, default=20)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--generations", type=int, default=20)
    parser.add_argument("--state", type=Path, help="folder for traces of searches that ended")
    parser.add_argument("--output", type=Path, help="write provenance and rows as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = RagMiddleModel.from_pretrained(arguments.model or reader_path())
    layers = model_traits(model.model).num_layers
    examples, _ = draw_examples(
        InventedDocuments(cited=arguments.model is None, documents=arguments.documents),
        questions=arguments.questions,
        held_out=100,
        weights=(0.2, 0.3, 0.5),
        seed=0,
        chat=bool(model.tokenizer.chat_template),
    )
    objective = ExampleObjective(model, examples)
    known = model_facts(model.model, model.tokenizer)
    rows = []
    for seed in arguments.seeds:
        found: dict[str, dict[str, Any]] = {}
        for name in ("ours", "plain"):
            settings = CurveSearch(generations=arguments.generations, plain=name == "plain")
            of = {"model": asdict(known), "data": digest(examples), "search": asdict(settings)}
            kept = arguments.state and arguments.state / f"{name}-{seed}.json"
            if kept and kept.exists():
                found[name] = json.loads(kept.read_text())
                if found[name]["of"] != of:
                    parser.error(f"{kept} is of another search: {found[name]['of']}")
                continue
            found[name] = searched(objective, layers, seed, settings)
            if kept:
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(json.dumps({"of": of} | found[name]))
        rows.append(compared(seed, found["ours"], found["plain"]))
        print(json.dumps(rows[-1]), flush=True)
    asked = {name: getattr(arguments, name) for name in ("questions", "documents", "generations")}
    if arguments.model:
        asked = {"model": arguments.model} | asked
    options = " ".join(f"--{name} {value}" for name, value in asked.items())
    seeds = " ".join(map(str, arguments.seeds))
    command = f"python benchmarks/lpes_search.py {options} --seeds {seeds}"  # without the state
    report(table(rows), rows, facts("cpu", timed=False, command=command, **asked), arguments.output)


if __name__ == "__main__":
    main()
