"""A method under which right answers become unlikely is dropped after the first questions.

The first `SCREENED` questions are scored by the log-likelihood of the right answer, with the gold
document in the middle, under the unmodified model and under every method. A method is dropped where
the mean is lower by more than 3 nats (the right answer is 20 times less likely), and lower at all
by a one-sided paired t-test at 5 %. Methods that a model was not made for fail by far more: Ms-PoE
with its default ratios by 10 nats on SmolLM2-135M, where PINE gains 1 and RoToR loses 0.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, stdev

SCREENED = 5
_T = 2.132  # 95 % quantile of Student's t with SCREENED - 1 degrees of freedom
_NATS = 3.0


def collapse(base: Sequence[float], own: Sequence[float]) -> str | None:
    """Why a method is dropped; None where it is not.

    Args:
        base: log-likelihoods of the right answers to `SCREENED` questions, unmodified.
        own: of the same under the method.
    """
    differences = [after - before for before, after in zip(base, own, strict=True)]
    mean, error = fmean(differences), stdev(differences) / sqrt(SCREENED)
    if mean >= -_NATS or mean + _T * error >= 0:
        return None
    return (
        f"dropped after {SCREENED} questions: the log-likelihood of the right answer fell from "
        f"{fmean(base):.1f} to {fmean(own):.1f} on average"
    )
