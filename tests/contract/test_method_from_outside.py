"""A package of somebody else brings new attention, and meets the contract as it is."""

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rag_middle.attention import applied
from rag_middle.errors import IncompatibleMethodsError
from rag_middle.methods import LPES, SIW, Compose, SelfExtend
from rag_middle.tokens import TokenizedPrompt
from tests.conftest import FamilyModel
from tests.contract.cases import LONG, SHORT, Prompt
from tests.contract.running import distance, generated, prompt_logits, recomputed
from tests.contract.snapshot import snapshot
from tests.families import FAMILIES, SUPPORTED

PACKAGE = Path(__file__).parents[2] / "examples" / "weighted_documents"
WAYS = [(family, way) for family in SUPPORTED for way in FAMILIES[family].implementations]


@pytest.fixture(autouse=True)
def weighted_documents(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package, as if it were installed."""
    monkeypatch.syspath_prepend(str(PACKAGE))
    return importlib.import_module("weighted_documents")


def scored(prompt: Prompt) -> TokenizedPrompt:
    """The prompt with a retriever's scores, the first document best."""
    documents = range(len(prompt.layout.documents))
    return replace(prompt.tokens, scores=tuple(1.5 / (1 + index) for index in documents))


@pytest.mark.pairs(("family", "implementation"), WAYS)
@pytest.mark.one_in(5)
def test_it_meets_the_contract_on_every_family(
    family: str, implementation: str, family_model: FamilyModel, weighted_documents: Any
) -> None:
    model, tolerance = family_model(family, implementation), FAMILIES[family].tolerance
    method, neutral = (weighted_documents.WeightedDocuments(strength=s) for s in (2.0, 0.0))
    plain = prompt_logits(model, LONG)
    before = snapshot(model)
    with applied(model, neutral, [scored(LONG)]):
        assert distance(prompt_logits(model, LONG), plain) < tolerance
    with applied(model, method, [scored(LONG)]):
        assert distance(prompt_logits(model, LONG), plain) > 0.005  # the suffix is five tokens
        tokens, logits = generated(model, [LONG])
    with applied(model, method, [scored(LONG)]):
        assert distance(logits[0], recomputed(model, LONG, tokens[0])) < tolerance
    with applied(model, method, [scored(SHORT), scored(LONG)]):
        together, of_rows = generated(model, [SHORT, LONG])
    for row, prompt in enumerate((SHORT, LONG)):
        with applied(model, method, [scored(prompt)]):
            alone, expected = generated(model, [prompt])
        assert torch.equal(together[row], alone[0])
        assert distance(of_rows[row], expected[0]) < tolerance
    assert FAMILIES[family].stateful or snapshot(model) == before


def test_it_composes_where_nothing_is_decided_twice(
    family_model: FamilyModel, weighted_documents: Any
) -> None:
    model, method = family_model("llama"), weighted_documents.WeightedDocuments()
    with applied(model, Compose(methods=(method, LPES(factors=1.3))), [scored(LONG)]):
        both = prompt_logits(model, LONG)
    with applied(model, method, [scored(LONG)]):
        assert distance(prompt_logits(model, LONG), both) > 0.01
    siw = Compose(methods=(method, SIW(layers=(0,))))
    with (
        pytest.raises(IncompatibleMethodsError, match="weights of layer 0"),
        applied(model, siw, [scored(LONG)]),
    ):
        pass
    with pytest.raises(IncompatibleMethodsError, match="keeps every key twice"):
        Compose(methods=(SelfExtend(), method))
