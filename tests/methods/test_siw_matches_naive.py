"""SIW against the whole matrix of attention weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from rag_middle.methods import SIW, Compose, PositionalHiddenStates
from tests.conftest import FamilyModel
from tests.methods.against_naive import WAYS, assert_equal_to_naive
from tests.reference.positional_hidden_states import NaivePositionalHiddenStates
from tests.reference.siw import NaiveSIW


def _documents(prompt: Any) -> tuple[tuple[int, int], ...]:
    documents: tuple[tuple[int, int], ...] = prompt.layout.documents
    return documents


@pytest.mark.parametrize("layers", [(0, 1, 2), (1,)], ids=str)
@pytest.mark.parametrize(("name", "implementation"), WAYS)
def test_a_factor_for_every_document(
    name: str, implementation: str, layers: tuple[int, ...], family_model: FamilyModel
) -> None:
    alphas = (0.0, 3.0, 0.4)
    assert_equal_to_naive(
        family_model(name, implementation),
        SIW(alpha_per_document=alphas, layers=layers),
        NaiveSIW,
        documents=_documents,
        alphas=dict.fromkeys(layers, alphas),
    )


@pytest.mark.parametrize(("name", "implementation"), WAYS)
def test_calibrated_areas(name: str, implementation: str, family_model: FamilyModel) -> None:
    # Three documents have their centres at 1/6, 1/2 and 5/6.
    assert_equal_to_naive(
        family_model(name, implementation),
        SIW(
            alpha_dense=0.2,
            alpha_sparse=2.5,
            dense_areas={0: (True, False), 2: (False, True, True, False)},
        ),
        NaiveSIW,
        documents=_documents,
        alphas={0: (0.2, 2.5, 2.5), 2: (2.5, 0.2, 2.5)},
    )


@pytest.mark.parametrize("top_share", [0.1, 0.3, 0.6])
@pytest.mark.parametrize(("name", "implementation"), WAYS)
def test_areas_found_in_the_prompt(
    name: str, implementation: str, top_share: float, family_model: FamilyModel
) -> None:
    found = {"alpha_dense": 0.2, "alpha_sparse": 2.5, "top_share": top_share}
    assert_equal_to_naive(
        family_model(name, implementation),
        SIW(layers=(0, 2), **found),
        NaiveSIW,
        documents=_documents,
        alphas={0: None, 2: None},
        **found,
    )


@dataclass
class NaiveBoth(NaivePositionalHiddenStates, NaiveSIW):
    """Rows of documents are SIW's; the last prompt row and later ones attend with scaled channels.

    The first class computes its rows from the weights of the second.
    """


@pytest.mark.parametrize(("name", "implementation"), WAYS)
def test_with_positional_hidden_states(
    name: str, implementation: str, family_model: FamilyModel
) -> None:
    alphas = (0.0, 3.0, 0.4)
    method = Compose(
        methods=(
            SIW(alpha_per_document=alphas, layers=(0, 1, 2)),
            PositionalHiddenStates(channels=(3, 40), factor=-1, layers=(1, 2)),
        )
    )
    assert_equal_to_naive(
        family_model(name, implementation),
        method,
        NaiveBoth,
        documents=_documents,
        alphas=dict.fromkeys((0, 1, 2), alphas),
        channels=(3, 40),
        factor=-1.0,
        changed_layers=(1, 2),
    )
