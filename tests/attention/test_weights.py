"""What every query gives to one key, where no fused kernel returns the log-sum-exp."""

from __future__ import annotations

import pytest

from rag_middle.attention import applied, weights
from rag_middle.methods import ZeroTuning
from tests.conftest import FamilyModel
from tests.contract.cases import LONG, SHORT
from tests.contract.running import distance, generated


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss"])  # soft caps; sinks and windows
@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_sums_over_a_few_rows_at_a_time_are_those_of_all(
    family: str, backend: str, family_model: FamilyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, method = family_model(family, backend), ZeroTuning(factor=3.0)
    logits = []
    for block in (weights._BLOCK_ELEMENTS, 400):
        monkeypatch.setattr(weights, "_BLOCK_ELEMENTS", block)
        with applied(model, method, [LONG.tokens, SHORT.tokens]):
            logits.append(generated(model, [LONG, SHORT])[1])
    assert distance(*logits) < 1e-5  # float32 sums in another order
