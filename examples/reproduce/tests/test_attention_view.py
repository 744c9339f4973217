"""Attention masses against the model's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rag_middle_reproduce.attention_view import (
    document_attention,
    plot_document_attention,
    plot_head_attention,
)

from rag_middle import ContextPrompt
from rag_middle.errors import ConfigError, UnsupportedArchitectureError
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import AttentionSorting
from tests.tokenizers import wordlevel

PROMPT = ContextPrompt(
    "Read.\n\n",
    ["Paris lies here.", "Lyon lies on the river.", "The lazy dog."],
    "Question: which river? Answer:",
)


@pytest.mark.parametrize(
    "family", ["llama3", "gemma2", "mistral_sliding", "gpt_oss", "gpt_neox", "qwen3_next", "gpt2"]
)
def test_masses_are_those_of_the_models_own_weights(
    family_model: Callable[..., Any], family: str
) -> None:
    eager = family_model(family, "eager")
    reader = RagMiddleModel(eager, wordlevel(), self_check=False)
    tokens = reader.encode(PROMPT)
    with torch.no_grad():
        own = eager(
            input_ids=torch.tensor([tokens.input_ids]), output_attentions=True, use_cache=False
        ).attentions
    by_layer = [weights for weights in own if weights is not None]
    view = document_attention(reader, PROMPT)
    assert len(by_layer) == len(view.layers)
    for row, weights in zip(view.documents, by_layer, strict=True):
        last = weights[0, :, -1].mean(dim=0).numpy()
        for mass, (start, end) in zip(row, tokens.layout.documents, strict=True):
            # float32, the same numbers in another order
            assert mass == pytest.approx(last[start:end].sum(), abs=1e-5)


def test_masses_of_a_row_sum_to_one_and_the_model_is_left_as_it_was(model: RagMiddleModel) -> None:
    before = model.logits(PROMPT)
    model.model.train()
    try:
        view = document_attention(model, PROMPT)
        assert all(module.training for module in model.model.modules())
    finally:
        model.model.eval()
    total = view.documents.sum(axis=1) + view.first_token + view.prefix + view.suffix
    assert np.allclose(total, 1, atol=1e-5)  # float32
    assert view.documents.shape == (3, 3)
    assert torch.equal(model.logits(PROMPT), before)


def test_masses_do_not_depend_on_the_backend(model: RagMiddleModel) -> None:
    sdpa = document_attention(model, PROMPT)
    model.model.set_attn_implementation("eager")
    try:
        eager = document_attention(model, PROMPT)
    finally:
        model.model.set_attn_implementation("sdpa")
    assert np.allclose(sdpa.documents, eager.documents, atol=1e-5)  # float32


def test_heat_maps_have_a_cell_per_layer_or_head_and_document(
    model: RagMiddleModel, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    view = document_attention(model, PROMPT)
    figure = plot_document_attention(view)
    shown = figure.axes[0].images[0].get_array()
    assert shown is not None
    assert shown.shape == (3, 3)
    figure = plot_head_attention(view.chosen(layers=[0, 2], heads=[1, 3]))
    assert [axes.get_title() for axes in figure.axes[:2]] == ["Layer 0", "Layer 2"]
    shown = figure.axes[1].images[0].get_array()
    assert shown is not None
    assert np.allclose(shown, 100 * view.by_head[2, [1, 3], 2:-1])
    figure.savefig(tmp_path / "map.png")


def test_masses_are_averaged_over_prompts(model: RagMiddleModel) -> None:
    other = ContextPrompt("Read.\n\n", PROMPT.documents[::-1], "Question: which fox? Answer:")
    first, second = (document_attention(model, prompt) for prompt in (PROMPT, other))
    both = document_attention(model, [PROMPT, other])
    assert np.allclose(both.by_head, (first.by_head + second.by_head) / 2)


def test_documents_are_those_of_the_prompt_under_methods_that_reorder_them(
    model: RagMiddleModel,
) -> None:
    turned = ContextPrompt(PROMPT.prefix, PROMPT.documents[::-1], PROMPT.suffix)
    sorting = AttentionSorting(iterations=1)
    one, other = (document_attention(model, prompt, method="pine") for prompt in (PROMPT, turned))
    assert np.allclose(one.documents, other.documents[:, ::-1], atol=1e-5)  # float32
    view = document_attention(model, PROMPT, method=sorting)
    tokens = model.encode(PROMPT, method="none")
    numbered = replace(tokens, document_ids=("0", "1", "2"))
    order = [int(name or 0) for name in model.encode(numbered, method=sorting).document_ids]
    assert order != [0, 1, 2]
    sent = ContextPrompt(PROMPT.prefix, [PROMPT.documents[i] for i in order], PROMPT.suffix)
    assert np.allclose(view.documents[:, order], document_attention(model, sent).documents)


def test_a_view_needs_documents_and_one_forward_pass(model: RagMiddleModel) -> None:
    with pytest.raises(ConfigError, match="needs documents"):
        document_attention(model, ContextPrompt(suffix="Question?"))
    fewer = ContextPrompt(documents=PROMPT.documents[:2], suffix="Question?")
    with pytest.raises(ConfigError, match=r"Numbers of documents: \[2, 3\]"):
        document_attention(model, [PROMPT, fewer])
    with pytest.raises(ConfigError, match="several forward passes"):
        document_attention(model, PROMPT, method="permutation")
    view = document_attention(model, PROMPT)
    with pytest.raises(ConfigError, match="layers 0 to 2; got \\[3\\]"):
        view.chosen(layers=[3])


def test_models_whose_attention_cannot_be_reached_are_refused(
    family_model: Callable[..., Any],
) -> None:
    bloom = RagMiddleModel(family_model("bloom"), wordlevel(), self_check=False)
    with pytest.raises(UnsupportedArchitectureError, match="attention view cannot"):
        document_attention(bloom, PROMPT)
