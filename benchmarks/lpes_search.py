"""What the LPES search needs to reach what the paper's own search reaches.

    python benchmarks/lpes_search.py --model FOLDER [--seeds 0 1 2] [--state FOLDER]
                                     [--also brute_force gradient]

The paper's search (`lpes:paper`) scores every child on every prompt, curves that it has scored
before too. Ours has the same operators, scores no curve twice, scores the most promising of several
children, drops clear losers, and ends when nothing better comes. Both are given the same questions,
each at three places, and are counted until they reach the fitness with which the paper's ends:

of all
    Prompts that go through the model: ours until it is there, to all of the paper's, which is what
    it costs to get that result from it.
of needed
    To the paper's until it was first there, which nobody knows before it has ended.

Two searches without curves, of the kinds that the paper compares with (tables 7 and 11), may be
counted beside them, with as many prompts as the paper's search takes:

brute_force
    Factors of every layer drawn from 1.0 to 2.0 in steps of 0.1, each combination once.
gradient
    From 1.5 in every layer along the gradient of the answers' likelihood, by differences of two
    scores per layer; steps get shorter when they lead nowhere.

Answers are read in one pass; what decoding would cost is not counted.

Traces of a seed are kept in ``--state`` and not computed again.
"""

from __future__ import annotations

import argparse
import json
import random
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
    ScoringScheme,
    draw_examples,
    evolve,
    make_search,
)
from rag_middle.calibration.examples import digest
from rag_middle.calibration.searches.genetic import Genome
from rag_middle.evaluation import shipped_questions
from rag_middle.generation import RagMiddleModel, model_facts
from rag_middle.methods import LPES

#: Prompts so far, and the fitness of the curve that was then scored completely.
Trace = list[tuple[int, float]]

Factors = tuple[float, ...]


class Counted:
    """Scores factors, and remembers after how many prompts which fitness was reached."""

    def __init__(self, objective: ExampleObjective, known: dict[Factors, Outcome]) -> None:
        self.objective, self.known = objective, known
        self.raced: dict[Factors, Outcome] = {}
        self.prompts = 0
        self.dropped = 0
        self.trace: Trace = []

    def __call__(self, factors: Factors, race: Race | None = None) -> Outcome:
        known = self.known if race is None else self.raced
        if factors not in known:
            count = len(self.objective.examples)
            known[factors] = self.objective.outcome(LPES(factors=factors), 0, count, race)
        outcome = known[factors]  # asked again, it is not computed again, but counted
        self.prompts += outcome.prompts
        self.dropped += not outcome.complete
        if outcome.complete:
            self.trace.append((self.prompts, outcome.score))
        return outcome

    @property
    def result(self) -> dict[str, Any]:
        """As it goes into the state."""
        return {"trace": self.trace, "prompts": self.prompts, "dropped": self.dropped}


def evolved(counted: Counted, layers: int, seed: int, settings: CurveSearch) -> None:
    """The genetic search."""

    def score(genomes: Sequence[Genome], race: Race | None) -> list[Outcome]:
        return [counted(settings.factors(genome, layers), race) for genome in genomes]

    evolve(settings, layers, seed, score, ScoringScheme.of(counted.objective.examples))


def by_brute_force(counted: Counted, layers: int, seed: int, most_prompts: int) -> None:
    """Factors at random, each combination once."""
    rng = random.Random(f"brute force {seed}")
    tried: set[Factors] = set()
    while counted.prompts < most_prompts and len(tried) < 11**layers:
        factors = tuple(rng.randint(10, 20) / 10 for _ in range(layers))
        if factors not in tried:
            tried.add(factors)
            counted(factors)


def by_gradient(counted: Counted, layers: int, seed: int, most_prompts: int) -> None:
    """Ascent of the likelihood, whose gradient comes from central differences."""
    factors, step, apart = [1.5] * layers, 0.2, 0.02
    best = counted(tuple(factors)).log_likelihood or 0.0
    while counted.prompts < most_prompts and step > 0.005:
        slopes = []
        for layer in range(layers):
            moved = [
                tuple(f + (sign * apart if at == layer else 0.0) for at, f in enumerate(factors))
                for sign in (1, -1)
            ]
            above, below = (counted(each).log_likelihood or 0.0 for each in moved)
            slopes.append(above - below)
        steepest = max(map(abs, slopes)) or 1.0
        further = [
            round(min(max(f + step * slope / steepest, 1.0), 2.0), 6)
            for f, slope in zip(factors, slopes, strict=True)
        ]
        reached = counted(tuple(further)).log_likelihood or 0.0
        if reached > best:
            factors, best = further, reached
        else:
            step /= 2


def prompts_until(fitness: float, trace: Trace) -> int | None:
    """Prompts after which a fitness was reached; None where it never was."""
    return next((after for after, score in trace if score >= fitness), None)


def compared(
    seed: int, ours: dict[str, Any], paper: dict[str, Any], **others: dict[str, Any]
) -> dict[str, Any]:
    """One row of the table; of other searches the best fitness, and prompts until the goal."""
    goal = max(score for _, score in paper["trace"])
    until = prompts_until(goal, ours["trace"])
    needed = prompts_until(goal, paper["trace"])
    assert needed is not None

    def ratio(part: float | None, whole: float) -> float | None:
        return None if part is None else round(part / whole, 3)

    return {
        "seed": seed,
        "fitness": goal,
        "ours_best": max(score for _, score in ours["trace"]),
        "paper_all": paper["prompts"],
        "paper_needed": needed,
        "ours_until": until,
        "ours_all": ours["prompts"],
        "ours_dropped": ours["dropped"],
        "of_all": ratio(until, paper["prompts"]),
        "of_needed": ratio(until, needed),
        **{
            name: {
                "best": max(score for _, score in other["trace"]),
                "until": prompts_until(goal, other["trace"]),
                "all": other["prompts"],
            }
            for name, other in others.items()
        },
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown table with the medians of the ratios below."""
    lines = [
        "| seed | fitness | paper, in all | paper, needed | ours, until there | ours, in all | "
        "of all | of needed |",
        "| ---: |" + " ---: |" * 7,
    ]
    ratios = ("of_all", "of_needed")
    for row in rows:
        counts = [
            "never" if row[name] is None else f"{row[name]:,}"
            for name in ("paper_all", "paper_needed", "ours_until", "ours_all")
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


def others_table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown table of the searches without curves."""
    lines = [
        "| seed | search | best fitness | prompts until the paper's | prompts in all |",
        "| ---: | --- | ---: | ---: | ---: |",
    ]
    for row in rows:
        for name in OTHERS:
            if name in row:
                other = row[name]
                until = "never" if other["until"] is None else f"{other['until']:,}"
                lines.append(
                    f"| {row['seed']} | {name} | {other['best']:.4f} | {until} | {other['all']:,} |"
                )
    return "\n".join(lines)


OTHERS = {"brute_force": by_brute_force, "gradient": by_gradient}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="folder or hub name")
    parser.add_argument("--questions", type=int, default=30)
    parser.add_argument("--documents", type=int, default=20)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--generations", type=int, default=20)
    parser.add_argument("--also", nargs="*", choices=OTHERS, default=[], help="other searches")
    parser.add_argument("--state", type=Path, help="folder for traces of searches that ended")
    parser.add_argument("--output", type=Path, help="write provenance and rows as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = RagMiddleModel.from_pretrained(arguments.model, dtype="float32")
    layers = model_traits(model.model).num_layers
    examples, _ = draw_examples(
        shipped_questions(documents=arguments.documents, distractors="random"),
        "lpes",
        questions=arguments.questions,
        held_out=100,
        chat=bool(model.tokenizer.chat_template),
    )
    objective = ExampleObjective(model, examples)
    facts_of_model = asdict(model_facts(model.model, model.tokenizer))
    scored: dict[Factors, Outcome] = {}
    rows = []
    for seed in arguments.seeds:
        found: dict[str, dict[str, Any]] = {}
        for name in ("paper", "ours", *arguments.also):
            settings = make_search(
                "lpes:paper" if name == "paper" else "lpes",
                {"generations": arguments.generations},
            )
            assert isinstance(settings, CurveSearch)
            of = {
                "model": facts_of_model,
                "data": digest(examples),
                "search": name if name in OTHERS else asdict(settings),
            }
            kept = arguments.state and arguments.state / f"{name}-{seed}.json"
            if kept and kept.exists():
                found[name] = json.loads(kept.read_text())
                if found[name]["of"] != of:
                    parser.error(f"{kept} is of another search: {found[name]['of']}")
                continue
            counted = Counted(objective, scored)
            if name in OTHERS:
                OTHERS[name](counted, layers, seed, found["paper"]["prompts"])
            else:
                evolved(counted, layers, seed, settings)
            found[name] = counted.result
            if kept:
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(json.dumps({"of": of} | found[name]))
        rows.append(compared(seed, **found))
        print(json.dumps(rows[-1]), flush=True)
    names = ("model", "questions", "documents", "generations")
    asked = {name: getattr(arguments, name) for name in names}
    options = " ".join(f"--{name} {value}" for name, value in asked.items())
    seeds = " ".join(map(str, arguments.seeds))
    also = " --also " + " ".join(arguments.also) if arguments.also else ""
    command = f"python benchmarks/lpes_search.py {options} --seeds {seeds}{also}"  # not the state
    tables = table(rows) + ("\n\n" + others_table(rows) if arguments.also else "")
    report(tables, rows, facts("cpu", timed=False, command=command, **asked), arguments.output)


if __name__ == "__main__":
    main()
