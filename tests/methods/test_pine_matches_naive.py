"""PINE in a whole model against one query and one key at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig

from rag_middle import ContextPrompt, MethodConfigError, RagMiddleModel
from rag_middle.layout import PromptLayout
from rag_middle.methods import PINE
from tests.conftest import FamilyModel
from tests.contract.cases import Prompt
from tests.methods.against_naive import assert_equal_to_naive
from tests.reference.llama import NaiveLlama
from tests.reference.pine import naive_pine, rotary_place
from tests.tiny_models import build, tiny
from tests.tokenizers import byte_level_bpe


@dataclass
class NaivePine(NaiveLlama):
    """The operator's twin in every layer."""

    documents: tuple[tuple[int, int], ...] = ()
    ablation: str | None = None

    def attention(self, layer: int, hidden: Tensor) -> Tensor:
        q, k, v = self.project(layer, hidden)
        frequencies = self.theta ** -(torch.arange(0, self.head_size, 2) / self.head_size)
        angles = torch.arange(hidden.shape[0])[:, None] * frequencies
        place = rotary_place(angles.cos(), angles.sin(), "half")
        scale = self.head_size**-0.5
        return naive_pine(q, k, v, self.documents, place, scale, ablation=self.ablation)[0]


#: Plain loops are slow: short prompts.
PROMPTS = (
    Prompt.random(PromptLayout(13, ((2, 5), (5, 9), (9, 11))), seed=21),
    Prompt.random(PromptLayout(9, ((1, 3), (3, 6), (6, 7))), seed=22),
)


@pytest.mark.parametrize("ablation", [None, "reversed", "no_reassignment"])
@pytest.mark.parametrize(("name", "implementation"), [("llama", "sdpa"), ("qwen3", "eager")])
@pytest.mark.one_in(6)
def test_pine(name: str, implementation: str, ablation: Any, family_model: FamilyModel) -> None:
    assert_equal_to_naive(
        family_model(name, implementation),
        PINE(ablation=ablation),
        NaivePine,
        PROMPTS,
        documents=lambda prompt: prompt.layout.documents,
        ablation=ablation,
    )


def test_only_with_re_assignment_the_order_of_the_prompt_means_nothing() -> None:
    tokenizer = byte_level_bpe(bos=True)
    config = tiny(LlamaConfig, vocab_size=len(tokenizer))
    reader = RagMiddleModel(build("pine ablations", config, "sdpa"), tokenizer)
    prompts = [ContextPrompt("", order, "?") for order in (["ab", "cd", "ef"], ["ef", "ab", "cd"])]
    moved = {}
    for ablation in ("reversed", "no_reassignment"):
        options = {"method": "pine", "method_options": {"ablation": ablation}}
        first, second = (reader.logits(prompt, **options) for prompt in prompts)
        moved[ablation] = float((first - second).abs().max())
    assert moved["reversed"] == 0
    assert moved["no_reassignment"] > 1e-4
    with pytest.raises(MethodConfigError, match="one of reversed, no_reassignment, got 'none'"):
        PINE(ablation="none")  # type: ignore[arg-type]
