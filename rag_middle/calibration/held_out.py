"""Whether settings help on prompts that the search never saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rag_middle.calibration.examples import Example
from rag_middle.calibration.objective import Outcome

__all__ = ["HeldOut", "held_out_check"]

RESAMPLES = 10_000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Accuracy before and after by place, and what the difference is worth.

    Attributes:
        scores: JSON-ready; every number as ``value``, ``low``, ``high`` of its 95 % interval,
            which resamples questions.
        improves: the interval of the worst place's gain lies above zero.
    """

    scores: dict[str, Any]
    improves: bool

    @property
    def verdict(self) -> str:
        """One sentence."""
        gain = self.scores["gain_of_worst_place"]
        told = f"{gain['value']:+.1%} (95 % interval {gain['low']:+.1%} to {gain['high']:+.1%})"
        if self.improves:
            return f"The worst place is answered better on held-out prompts: {told}."
        if gain["high"] < 0:
            return (
                f"On held-out prompts this is worse than the unmodified model: worst place {told}. "
                "It is not recommended."
            )
        return (
            "On held-out prompts this does not beat the unmodified model beyond chance: worst "
            f"place {told}. It is not recommended; more held-out questions narrow the interval."
        )


def held_out_check(
    examples: Sequence[Example], before: Outcome, after: Outcome, *, seed: int = 0
) -> HeldOut:
    """Compare verdicts on every question at every place.

    Args:
        examples: every question at the same places.
        before: of the unmodified model.
        after: with the settings found.
        seed: of the resampling.
    """
    places = sorted({each.place for each in examples})
    questions = sorted({each.question for each in examples})
    scores = np.zeros((2, len(questions), len(places)))
    for index, example in enumerate(examples):
        at = questions.index(example.question), places.index(example.place)
        scores[(0, *at)] = before.right[index] == "1"
        scores[(1, *at)] = after.right[index] == "1"
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(len(questions), [1 / len(questions)] * len(questions), RESAMPLES)
    means = scores.mean(axis=1)  # [2, places]
    resampled = np.einsum("rq,cqp->crp", drawn / len(questions), scores)  # [2, resamples, places]
    worst = _estimate(means.min(axis=-1), resampled.min(axis=-1))
    mean = _estimate(means.mean(axis=-1), resampled.mean(axis=-1))
    found = {
        "questions": len(questions),
        "places": [
            {
                "place": place,
                "before": _told(means[0, at], resampled[0, :, at]),
                "after": _told(means[1, at], resampled[1, :, at]),
                "gain": _told(
                    means[1, at] - means[0, at], resampled[1, :, at] - resampled[0, :, at]
                ),
            }
            for at, place in enumerate(places)
        ],
        "gain_of_worst_place": worst,
        "gain_of_mean": mean,
        "log_likelihood": {"before": before.log_likelihood, "after": after.log_likelihood},
    }
    return HeldOut(scores=found, improves=worst["low"] > 0)


def _estimate(means: NDArray[np.float64], resampled: NDArray[np.float64]) -> dict[str, float]:
    return _told(means[1] - means[0], resampled[1] - resampled[0])


def _told(value: float, resampled: NDArray[np.float64]) -> dict[str, float]:
    outside = (1 - CONFIDENCE) / 2
    low, high = np.quantile(resampled, [outside, 1 - outside])
    # Rounded: the last digits of a mean depend on the order in which it was summed.
    return {
        "value": round(float(value), 9),
        "low": round(float(low), 9),
        "high": round(float(high), 9),
    }
