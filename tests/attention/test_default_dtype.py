"""Methods compute the same under any default number format, which programs set to load models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from rag_middle.attention import applied
from rag_middle.layout import PromptLayout
from rag_middle.methods import (
    APE,
    DSAS,
    LPES,
    PINE,
    SIW,
    DySCO,
    Method,
    MoICE,
    MsPoE,
    SelfExtend,
    StructuredPrompting,
)
from tests.conftest import FamilyModel
from tests.contract.cases import LONG, Prompt
from tests.contract.running import distance, generated

SHORT = Prompt.random(PromptLayout(17, ((1, 6), (6, 8), (8, 15))), seed=12)


@pytest.fixture(params=[torch.float64, torch.bfloat16], ids=str)
def default(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    before = torch.get_default_dtype()
    yield request.param
    torch.set_default_dtype(before)


@pytest.mark.parametrize(
    "method",
    [
        PINE(),
        MsPoE(first_layer=0),
        LPES(factors=1.3),
        SIW(alpha_dense=0.3, alpha_sparse=1.9),
        DSAS(beta=0.3),
        MoICE(routers="uniform", base_factors=(1.0, 3.0)),
        SelfExtend(group=3, window=6),
        DySCO(heads=((1, 1),), strength=3.0, top_k=6),
        StructuredPrompting(),
        APE(temperature=0.6, scale=0.7),
    ],
    ids=lambda method: type(method).__name__,
)
def test_logits_do_not_depend_on_it(
    method: Method, default: torch.dtype, family_model: FamilyModel
) -> None:
    model, prompts = family_model("llama"), (LONG, SHORT)
    tokens = [prompt.tokens for prompt in prompts]
    with applied(model, method, tokens):
        expected = generated(model, prompts)[1]
    torch.set_default_dtype(default)
    with applied(model, method, tokens):
        assert distance(generated(model, prompts)[1], expected) < 1e-4
