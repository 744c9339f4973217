"""Names of curves."""

from __future__ import annotations

import numpy as np
import pytest

from rag_middle.evaluation.shapes import shape_names, shape_of
from rag_middle.evaluation.statistics import Bootstrap


@pytest.mark.parametrize(
    ("curve", "name"),
    [
        ([0.8, 0.5, 0.4, 0.5, 0.8], "U"),
        ([0.758, 0.572, 0.538, 0.554, 0.632], "U"),  # uneven ends, as published for GPT-3.5
        ([0.9, 0.7, 0.6, 0.5, 0.4], "primacy"),
        ([0.9, 0.5, 0.5, 0.5, 0.5], "primacy"),
        ([0.4, 0.5, 0.6, 0.7, 0.9], "recency"),
        ([0.5, 0.5, 0.5, 0.5, 0.9], "recency"),
        ([0.5, 0.52, 0.5, 0.51, 0.5], "flat"),
        ([0.5, 0.9, 0.9, 0.9, 0.5], "inverted U"),
        ([0.5, 0.5, 0.9, 0.5, 0.5], "inverted U"),
        ([0.9, 0.4, 0.9, 0.4, 0.9], "irregular"),
        ([0.4, 0.9, 0.9, 0.9, 0.9], "primacy deficit"),
        ([0.9, 0.9, 0.9, 0.9, 0.4], "recency deficit"),
        ([0.9, 0.5], "primacy"),
        ([0.5, 0.9], "recency"),
    ],
)
def test_a_curve_has_a_name(curve: list[float], name: str) -> None:
    assert shape_names(np.array([curve]), flat_within=0.05) == [name]


def bootstrap(chances: list[float], questions: int, seed: int = 0) -> Bootstrap:
    rng = np.random.default_rng(seed)
    return Bootstrap((rng.random((questions, len(chances))) < chances).astype(float))


def test_a_clear_shape_is_sure() -> None:
    shape = shape_of(bootstrap([0.9, 0.4, 0.4, 0.4, 0.9], 300))
    assert shape.name == "U"
    assert shape.confidence > 0.99


def test_confidence_is_the_share_of_resampled_curves_with_the_name() -> None:
    means = bootstrap([0.9, 0.4, 0.4, 0.6], 60)
    shape = shape_of(means)
    gap = means.gap()
    names = [shape_names(m[None], gap.value - gap.low)[0] for m in means.resampled_means[:2000]]
    # 2,000 of 10,000 resamples: four standard deviations of a share.
    assert shape.confidence == pytest.approx(names.count(shape.name) / 2000, abs=0.045)
