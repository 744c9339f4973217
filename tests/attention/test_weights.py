"""What every query gives to one key, where no fused kernel returns the log-sum-exp."""

from __future__ import annotations

import pytest

from rag_middle.attention import applied, weights
from rag_middle.methods import ZeroTuning
from tests.contract.cases import LONG, SHORT
from tests.contract.half import half_precision, rounded
from tests.contract.running import distance, generated
from tests.families import FAMILIES


@pytest.mark.parametrize(
    ("family", "dtype", "tolerance"),
    [("gpt_oss", "float32", 1e-5), ("gemma2", "bfloat16", 2e-2)],  # sinks; soft caps
)
def test_sums_over_a_few_rows_at_a_time_are_those_of_all(
    family: str, dtype: str, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = half_precision(rounded(FAMILIES[family].build("eager")), dtype)
    blocks, logits = [], []
    sums = weights.ModelAttention._lse_in_blocks
    monkeypatch.setattr(
        weights.ModelAttention, "_lse_in_blocks", lambda *a: blocks.append(1) or sums(*a)
    )
    for block in (weights._BLOCK_ELEMENTS, 400):
        monkeypatch.setattr(weights, "_BLOCK_ELEMENTS", block)
        with applied(model, ZeroTuning(factor=3.0), [LONG.tokens, SHORT.tokens]):
            logits.append(generated(model, [LONG, SHORT])[1])
    assert distance(*logits) < tolerance
    assert blocks
