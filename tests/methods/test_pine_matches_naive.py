"""PINE in a whole model against one query and one key at a time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from rag_middle.layout import PromptLayout
from rag_middle.methods import PINE
from tests.conftest import FamilyModel
from tests.contract.cases import Prompt
from tests.methods.against_naive import assert_equal_to_naive
from tests.reference.llama import NaiveLlama
from tests.reference.pine import naive_pine, rotary_place


@dataclass
class NaivePine(NaiveLlama):
    """The operator's twin in every layer."""

    documents: tuple[tuple[int, int], ...] = ()

    def attention(self, layer: int, hidden: Tensor) -> Tensor:
        q, k, v = self.project(layer, hidden)
        frequencies = self.theta ** -(torch.arange(0, self.head_size, 2) / self.head_size)
        angles = torch.arange(hidden.shape[0])[:, None] * frequencies
        place = rotary_place(angles.cos(), angles.sin(), "half")
        return naive_pine(q, k, v, self.documents, place, self.head_size**-0.5)[0]


#: Plain loops are slow: short prompts.
PROMPTS = (
    Prompt.random(PromptLayout(13, ((2, 5), (5, 9), (9, 11))), seed=21),
    Prompt.random(PromptLayout(9, ((1, 3), (3, 6), (6, 7))), seed=22),
)


@pytest.mark.parametrize(("name", "implementation"), [("llama", "sdpa"), ("qwen3", "eager")])
def test_pine(name: str, implementation: str, family_model: FamilyModel) -> None:
    assert_equal_to_naive(
        family_model(name, implementation),
        PINE(),
        NaivePine,
        PROMPTS,
        documents=lambda prompt: prompt.layout.documents,
    )
