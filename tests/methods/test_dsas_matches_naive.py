"""DSAS against matrices of scores that are changed entry by entry."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import pytest
import torch

from rag_middle.attention import applied
from rag_middle.errors import IncompatibleMethodsError, MethodConfigError
from rag_middle.layout import PromptLayout
from rag_middle.methods import DSAS, Compose, SelfExtend
from rag_middle.methods.dsas.attention import document_relevance, exponents
from tests.conftest import FamilyModel
from tests.contract.cases import ONE_DOCUMENT, Prompt
from tests.contract.running import prompt_logits
from tests.methods.against_naive import WAYS, assert_equal_to_naive
from tests.reference.dsas import NaiveDSAS

#: A batch with padding; with five documents, the better half is two.
PROMPTS = (
    Prompt.random(PromptLayout(31, ((3, 8), (8, 12), (12, 17), (17, 21), (21, 26))), seed=41),
    Prompt.random(PromptLayout(19, ((2, 6), (6, 13))), seed=42),
    Prompt.random(PromptLayout(28, ((1, 4), (4, 16), (16, 24))), seed=43),
)
SETTINGS: dict[str, dict[str, Any]] = {
    "published": {},
    "sharp": {"alpha": 3.0, "beta": 0.1, "top_tokens": 2},
    "reference_code": {"beta": 0.2, "top_tokens": 3, "reference_code": True},
}


@pytest.mark.parametrize("case", SETTINGS)
@pytest.mark.parametrize(("name", "implementation"), WAYS)
@pytest.mark.one_in(5)
def test_scores_are_scaled_by_gates(
    name: str, implementation: str, case: str, family_model: FamilyModel
) -> None:
    settings = SETTINGS[case]
    assert_equal_to_naive(
        family_model(name, implementation),
        DSAS(layers=(1, 2), **settings),
        NaiveDSAS,
        PROMPTS,
        documents=lambda prompt: prompt.layout.documents,
        changed=(1, 2),
        **settings,
    )


def test_relevance_beyond_float16_is_a_number() -> None:
    """Scores of a long question are added up over heads: its outliers pass 65504 soon."""
    layout = PromptLayout(60, ((2, 20), (20, 40)))
    query, key = (2000 + torch.randn(1, 4, 60, 8)).half(), torch.randn(1, 2, 60, 8).half()
    relevance = document_relevance(query, key, layout, 0.5, 10)
    expected = document_relevance(query.float(), key.float(), layout, 0.5, 10)
    torch.testing.assert_close(relevance, expected)


def test_the_density_of_a_token_is_the_limit_of_that_of_several() -> None:
    layout = PromptLayout(400, ((100, 101), (101, 300), (300, 300), (300, 302)))
    one, many, few = exponents(layout)  # empty documents have none
    of_tokens = NormalDist(199, torch.arange(399.0).std().item())
    assert one == pytest.approx(of_tokens.pdf(100) * of_tokens.stdev)
    assert few == pytest.approx(of_tokens.pdf(300.5) * of_tokens.stdev, rel=1e-4)
    assert many > one > few


def test_a_document_on_its_own_is_left_alone(family_model: FamilyModel) -> None:
    model = family_model("llama")
    expected = prompt_logits(model, ONE_DOCUMENT)
    with applied(model, DSAS(), [ONE_DOCUMENT.tokens]):
        assert torch.equal(prompt_logits(model, ONE_DOCUMENT), expected)


@pytest.mark.parametrize(
    "options",
    [{"beta": 0}, {"beta": 1.1}, {"alpha": -1}, {"alpha": float("inf")}, {"top_tokens": 0}],
)
def test_mistakes_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(MethodConfigError):
        DSAS(**options)


def test_rows_with_two_scores_for_a_key_are_refused() -> None:
    with pytest.raises(IncompatibleMethodsError, match="self_extend"):
        Compose(methods=(DSAS(), SelfExtend(group=2, window=4)))
