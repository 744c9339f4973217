"""A package of somebody else brings new attention, and meets the contract as it is."""

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rag_middle.errors import IncompatibleMethodsError
from rag_middle.methods import LPES, SIW, Compose, SelfExtend
from tests.conftest import FamilyModel
from tests.contract.cases import LONG, SHORT, Prompt
from tests.contract.running import (
    assert_cached_equals_recomputed,
    assert_refused,
    assert_rows_equal_prompts_alone,
    distance,
    logits_under,
    prompt_logits,
)
from tests.contract.snapshot import snapshot
from tests.families import FAMILIES, SUPPORTED

PACKAGE = Path(__file__).parents[2] / "examples" / "weighted_documents"
WAYS = [(family, way) for family in SUPPORTED for way in FAMILIES[family].implementations]


@pytest.fixture(autouse=True)
def weighted_documents(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package, as if it were installed."""
    monkeypatch.syspath_prepend(str(PACKAGE))
    return importlib.import_module("weighted_documents")


def scored(prompt: Prompt) -> Prompt:
    """With a retriever's scores, the first document best."""
    documents = range(len(prompt.layout.documents))
    return replace(prompt, scores=tuple(1.5 / (1 + index) for index in documents))


@pytest.mark.pairs(("family", "implementation"), WAYS)
@pytest.mark.one_in(5)
def test_it_meets_the_contract_on_every_family(
    family: str, implementation: str, family_model: FamilyModel, weighted_documents: Any
) -> None:
    model, tolerance = family_model(family, implementation), FAMILIES[family].tolerance
    method, neutral = (weighted_documents.WeightedDocuments(strength=s) for s in (2.0, 0.0))
    short, long = scored(SHORT), scored(LONG)
    plain = prompt_logits(model, LONG)
    before = snapshot(model)
    assert distance(logits_under(model, neutral, long), plain) < tolerance
    assert distance(logits_under(model, method, long), plain) > 0.005  # the suffix is five tokens
    assert_cached_equals_recomputed(model, method, tolerance, long)
    assert_rows_equal_prompts_alone(model, method, tolerance, (short, long))
    assert FAMILIES[family].stateful or snapshot(model) == before


def test_it_composes_where_nothing_is_decided_twice(
    family_model: FamilyModel, weighted_documents: Any
) -> None:
    model, method = family_model("llama"), weighted_documents.WeightedDocuments()
    both = logits_under(model, Compose(methods=(method, LPES(factors=1.3))), scored(LONG))
    assert distance(logits_under(model, method, scored(LONG)), both) > 0.01
    siw = Compose(methods=(method, SIW(layers=(0,))))
    assert_refused(model, siw, IncompatibleMethodsError, "weights of layer 0", scored(LONG))
    with pytest.raises(IncompatibleMethodsError, match="keeps every key twice"):
        Compose(methods=(SelfExtend(), method))
