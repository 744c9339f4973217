"""How many prompts `diagnose --stop-early` asks, and how often it is wrong, on simulated curves.

Each simulated question has a difficulty of its own, shared by all positions and methods
(correlation 0.5 of the normal scores), as real ones have; the same answers are judged once in full
and once with stopping. "Right" is what follows from the true chances: a gap where two positions
differ by 10 points or more, help where the worst position gains 10 points or more.

    python benchmarks/sequential_stopping.py --output benchmarks/results/sequential_stopping
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from reporting import Facts, facts, report

from rag_middle.evaluation.conclusions import Recommendation, recommend
from rag_middle.evaluation.metrics import metric
from rag_middle.evaluation.stopping import ask_until_decided

FLAT = [0.7] * 5
U = [0.9, 0.55, 0.5, 0.55, 0.85]
MILD = [0.8, 0.68, 0.65, 0.68, 0.8]
RECENCY = [0.5, 0.6, 0.7, 0.8, 0.9]
PLATEAU = [0.95, 0.6, 0.6, 0.6, 0.6]
TEN = [0.9] + [0.6] * 9
#: True chances at five or ten positions, by method.
CURVES: Mapping[str, Mapping[str, Sequence[float]]] = {
    "flat at 70 %": {"none": FLAT, "a": FLAT, "b": FLAT},
    "flat at 95 %": {"none": [0.95] * 5, "a": [0.95] * 5},
    "U of 40 points, one helps": {"none": U, "a": [0.85] * 5, "b": U},
    "U of 40 points, none helps": {"none": U, "a": U, "b": [chance - 0.05 for chance in U]},
    "U of 15 points, one helps": {"none": MILD, "a": [0.77] * 5},
    "U of 15 points, none helps": {"none": MILD, "a": MILD},
    "recency of 40 points, one helps by half": {
        "none": RECENCY,
        "a": [0.65, 0.7, 0.75, 0.8, 0.85],
        "b": RECENCY,
    },
    "primacy deficit of 30 points, both help": {
        "none": [0.63, 0.83, 0.93, 0.93, 0.9],
        "a": [0.93] * 5,
        "b": [0.8, 0.9, 0.95, 0.95, 0.9],
    },
    "primacy of 35 points, a plateau; one lifts all of it but one": {
        "none": PLATEAU,
        "a": [0.95, 0.9, 0.6, 0.9, 0.95],
    },
    "primacy of 35 points, a plateau; one helps": {"none": PLATEAU, "a": [0.75] * 5},
    "primacy of 30 points, ten positions; one lifts all but one": {
        "none": TEN,
        "a": [0.9, 0.6] + [0.7] * 8,
    },
    "primacy of 30 points, ten positions; one helps": {"none": TEN, "a": [0.75] * 10},
}
_METRIC = metric("answer_stated")


def drawn(
    rng: np.random.Generator, chances: Mapping[str, Sequence[float]], questions: int
) -> dict[str, np.ndarray]:
    """Scores of 0 and 1, `[questions, positions]`, by method."""
    difficulty = rng.normal(size=(questions, 1))
    threshold = NormalDist().inv_cdf
    return {
        label: (
            np.sqrt(0.5) * difficulty + np.sqrt(0.5) * rng.normal(size=(questions, len(row)))
            < [threshold(chance) for chance in row]
        ).astype(float)
        for label, row in chances.items()
    }


def stopped(
    scores: Mapping[str, np.ndarray], questions: int, resamples: int
) -> tuple[int, Recommendation]:
    """How many prompts it asks, and what is recommended then."""
    state: dict[str, Any] = {}

    def ask(
        count: int, labels: Sequence[str], confidence: float, left_out: Mapping[str, int]
    ) -> Mapping[str, np.ndarray]:
        state.update(confidence=confidence)
        state["scores"] = {label: scores[label][:count] for label in ("none", *labels)}
        return state["scores"]

    methods = [label for label in scores if label != "none"]
    left_out = ask_until_decided(ask, methods, questions, _METRIC, resamples=resamples)
    so_far = state["scores"]
    positions = scores["none"].shape[1]
    prompts = positions * (sum(map(len, so_far.values())) + sum(left_out.values()))
    return prompts, recommend(
        so_far,
        _METRIC,
        confidence=state["confidence"],
        compared=len(methods),
        resamples=resamples,
    )


def errors(
    recommendation: Recommendation, chances: Mapping[str, Sequence[float]]
) -> tuple[int, int]:
    """Whether something is claimed that is not true, and whether something true is missed."""
    base = chances["none"]
    gap = max(base) - min(base) >= 0.1
    helping = {label for label, row in chances.items() if min(row) - min(base) >= 0.1}
    claims_gap = recommendation.reason in ("no_help", "helps")
    claimed = recommendation.label != "none"
    false = (claims_gap and not gap) or (claimed and recommendation.label not in helping)
    missed = (gap and not claims_gap) or (bool(helping) and not claimed)
    return int(false), int(missed)


def rows_of(runs: int, questions: int, resamples: int) -> list[dict[str, Any]]:
    """A row per curve: share of the prompts asked, and errors of both ways."""
    rows = []
    for number, (name, chances) in enumerate(CURVES.items()):
        shares, in_full, with_stops = [], [], []
        for run in range(runs):
            scores = drawn(np.random.default_rng([number, run]), chances, questions)
            full = recommend(scores, _METRIC, resamples=resamples)
            prompts, early = stopped(scores, questions, resamples)
            shares.append(prompts / sum(own.size for own in scores.values()))
            in_full.append(errors(full, chances))
            with_stops.append(errors(early, chances))
        false, missed = np.mean(in_full, axis=0).tolist()
        false_early, missed_early = np.mean(with_stops, axis=0).tolist()
        rows.append(
            {
                "curve": name,
                "share": float(np.mean(shares)),
                "false": false,
                "false_early": false_early,
                "missed": missed,
                "missed_early": missed_early,
            }
        )
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown, with the means of all curves."""
    names = ("share", "false", "false_early", "missed", "missed_early")
    mean = {"curve": "**mean**"} | {name: np.mean([row[name] for row in rows]) for name in names}
    lines = [
        "| true curve | prompts asked | false claims, in full | stopped | missed, in full "
        "| stopped |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in (*rows, mean):
        shares = " | ".join(f"{100 * row[name]:.1f} %" for name in names)
        lines.append(f"| {row['curve']} | {shares} |")
    return "\n".join(lines)


def page(rows: Sequence[Mapping[str, Any]], known: Facts) -> str:
    """The page that `--output` writes."""
    return (
        "# Stopping early, simulated\n\n"
        f"{known['runs']} simulated runs of at most {known['questions']} questions per curve. The "
        "same answers are judged in full and with stopping. A false claim: a gap or help of a "
        "method that the true chances do not have; missed: one of 10 points or more that is not "
        "claimed.\n\n"
        f"{table(rows)}\n\nRepeat with `{known['command']}`. {known['date']}; Python "
        f"{known['python']}; rag-middle {known['rag_middle']}.\n"
    )


def main() -> None:
    """Simulate, print a table, and write the numbers where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--resamples", type=int, default=1000)
    parser.add_argument("--output", type=Path, metavar="FILE", help="write FILE.json and FILE.md")
    args = parser.parse_args()
    rows = rows_of(args.runs, args.questions, args.resamples)
    known = facts(None, timed=False, runs=args.runs, questions=args.questions)
    report(table(rows), rows, known, args.output)
    if args.output:
        args.output.with_suffix(".md").write_text(page(rows, known), encoding="utf-8")


if __name__ == "__main__":
    main()
