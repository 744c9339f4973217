"""Whether the best settings help on held-out prompts, and the profile that says so."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rag_middle.calibration.objective import Example, Outcome
from rag_middle.calibration.search import Candidate
from rag_middle.evaluation.conclusions import verdict_on
from rag_middle.evaluation.statistics import CONFIDENCE, Bootstrap, Estimate
from rag_middle.methods import Method, NoMethod
from rag_middle.methods.resolve import options_in_words
from rag_middle.profiles import ModelFacts, Profile
from rag_middle.wording import points


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutCheck:
    """Held-out accuracy before and after by position, with the gains.

    Attributes:
        scores: JSON-ready; every number as ``value``, ``low``, ``high`` of its 95 % confidence
            interval, bootstrapped over questions.
        improves: the accuracy at the worst position gains, statistically significantly, and the
            mean over positions does not fall.
    """

    scores: dict[str, Any]
    improves: bool

    @property
    def verdict(self) -> str:
        """One sentence."""
        gain, mean = self.scores["gain_of_worst_place"], self.scores["gain_of_mean"]
        numbers = points(gain)
        if self.improves:
            return f"Held-out accuracy at the worst position improves: {numbers}."
        if gain["high"] < 0:
            return (
                "Held-out accuracy is worse than that of the unmodified model: worst position "
                f"{numbers}. These settings are not recommended."
            )
        if gain["low"] > 0:
            return (
                f"Held-out accuracy at the worst position improves ({numbers}), but the mean over "
                f"positions falls: {points(mean)}. These settings are not recommended."
            )
        return (
            "The gain in held-out accuracy over the unmodified model is not statistically "
            f"significant: worst position {numbers}. These settings are not recommended; more "
            "held-out questions narrow the interval."
        )


def check_held_out(examples: Sequence[Example], before: Outcome, after: Outcome) -> HeldOutCheck:
    """Compare accuracy on held-out questions, each of which is asked at the same positions.

    `before` is that of the unmodified model, `after` that of the fitted settings.
    """
    positions = sorted({example.position for example in examples})
    questions = sorted({example.question for example in examples})
    right = np.zeros((2, len(questions), len(positions)))
    for example, *flags in zip(examples, before.right, after.right, strict=True):
        cell = questions.index(example.question), positions.index(example.position)
        right[:, *cell] = [flag == "1" for flag in flags]
    verdict = verdict_on("fitted", right[0], right[1], CONFIDENCE)
    # Before, after and their difference at each position, of the same questions.
    columns = (*right, right[1] - right[0])
    alone = [map(_numbers, Bootstrap(scores).estimates()) for scores in columns]
    scores = {
        "questions": len(questions),
        "places": [
            {"place": position, **dict(zip(("before", "after", "gain"), numbers, strict=True))}
            for position, *numbers in zip(positions, *alone, strict=True)
        ],
        "gain_of_worst_place": _numbers(verdict.worst_difference),
        "gain_of_mean": _numbers(verdict.mean_difference),
        "log_likelihood": {"before": before.log_likelihood, "after": after.log_likelihood},
    }
    return HeldOutCheck(scores=scores, improves=verdict.helps)


def _numbers(estimate: Estimate) -> dict[str, float]:
    # Rounded: the last digits of a mean depend on the order in which it was summed.
    return {name: round(getattr(estimate, name), 9) for name in ("value", "low", "high")}


def make_profile(
    made_by: Mapping[str, Any],
    facts: ModelFacts,
    before: Outcome,
    winner: tuple[Candidate, Outcome] | None,
    check: HeldOutCheck | None,
    details: Mapping[str, Any],
) -> Profile:
    """The best settings, where they come from, and whether they help.

    Args:
        made_by: the fields ``seed``, ``software``, ``data`` and ``search`` of the profile.
        before: of the unmodified model, on the prompts of the search.
        check: of the winner on held-out examples; None where there are none.
        details: what else the search found out, with its trace.
    """
    method: Method = NoMethod()
    after, better = None, False
    note = check.verdict if check else "Not checked on held-out prompts: nothing is recommended."
    if winner is None:
        note = "No candidate was found: nothing to recommend."
    else:
        method, after = winner[0].method, winner[1]
        better = after.score > before.score
        if not better:
            note = (
                "No candidate scores higher than the unmodified model on the prompts of the search "
                f"({before.score:.4g}). {note}"
            )
    return Profile(
        method=method.name,
        options=options_in_words(method),
        model=facts,
        note=note,
        recommended=None if check is None else check.improves and better,
        # As JSON has it: a profile in memory is equal to the file's.
        **{**made_by, "search": json.loads(json.dumps({**made_by["search"], **details}))},
        scores={
            "search": {"before": _scores(before), "after": after and _scores(after)},
            "held_out": check and check.scores,
        },
    )


def _scores(outcome: Outcome) -> dict[str, Any]:
    return {
        "score": outcome.score,
        "log_likelihood": outcome.log_likelihood,
        "right": outcome.right.count("1") / len(outcome.right) if outcome.right else None,
    }
