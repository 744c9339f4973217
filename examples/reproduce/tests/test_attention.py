"""Attention to documents against the model's own weights, and as pictures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rag_middle_reproduce.attention import AttentionView, document_attention
from rag_middle_reproduce.config import EvaluationConfig, ModelConfig, TaskConfig

from rag_middle import ContextPrompt
from rag_middle.errors import ConfigError, UnsupportedArchitectureError
from rag_middle.evaluation import position
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
@pytest.mark.one_in(3)
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
    view = document_attention(reader, [PROMPT])
    assert len(by_layer) == len(view.layers)
    for row, weights in zip(view.documents.mean(axis=1), by_layer, strict=True):
        last = weights[0, :, -1].mean(dim=0).numpy()
        for mass, (start, end) in zip(row, tokens.layout.documents, strict=True):
            # float32, the same numbers in another order
            assert mass == pytest.approx(last[start:end].sum(), abs=1e-5)


def test_masses_of_a_row_sum_to_one_and_the_model_is_left_as_it_was(model: RagMiddleModel) -> None:
    before = model.logits(PROMPT)
    model.model.train()
    try:
        view = document_attention(model, [PROMPT])
        assert all(module.training for module in model.model.modules())
    finally:
        model.model.eval()
    assert np.allclose(view.by_prompt.sum(axis=-1), 1, atol=1e-5)  # float32
    assert view.documents.shape == (3, 4, 3)
    lengths = model.encode(PROMPT).layout.document_lengths
    per_token = document_attention(model, [PROMPT], per_token=True)
    assert np.allclose(per_token.documents * lengths, view.documents)
    assert torch.equal(model.logits(PROMPT), before)


def test_masses_do_not_depend_on_the_backend(model: RagMiddleModel) -> None:
    sdpa = document_attention(model, [PROMPT])
    model.model.set_attn_implementation("eager")
    try:
        eager = document_attention(model, [PROMPT])
    finally:
        model.model.set_attn_implementation("sdpa")
    assert np.allclose(sdpa.documents, eager.documents, atol=1e-5)  # float32


def test_documents_are_those_of_the_prompt_under_methods_that_reorder_them(
    model: RagMiddleModel,
) -> None:
    turned = ContextPrompt(PROMPT.prefix, PROMPT.documents[::-1], PROMPT.suffix)
    sorting = AttentionSorting(iterations=1)
    one, other = (document_attention(model, [prompt], method="pine") for prompt in (PROMPT, turned))
    assert np.allclose(one.documents, other.documents[..., ::-1], atol=1e-5)  # float32
    view = document_attention(model, [PROMPT], method=sorting)
    tokens = model.encode(PROMPT, method="none")
    numbered = replace(tokens, document_ids=("0", "1", "2"))
    order = [int(name or 0) for name in model.encode(numbered, method=sorting).document_ids]
    assert order != [0, 1, 2]
    sent = ContextPrompt(PROMPT.prefix, [PROMPT.documents[i] for i in order], PROMPT.suffix)
    assert np.allclose(view.documents[..., order], document_attention(model, [sent]).documents)


def test_a_view_needs_documents_and_one_forward_pass(model: RagMiddleModel) -> None:
    with pytest.raises(ConfigError, match="needs documents"):
        document_attention(model, [ContextPrompt(suffix="Question?")])
    fewer = ContextPrompt(documents=PROMPT.documents[:2], suffix="Question?")
    with pytest.raises(ConfigError, match=r"Numbers of documents: \[2, 3\]"):
        document_attention(model, [PROMPT, fewer])
    with pytest.raises(ConfigError, match="several forward passes"):
        document_attention(model, [PROMPT], method="permutation")
    view = document_attention(model, [PROMPT])
    assert view.chosen(layers=[2, 3]).layers == (2,)
    with pytest.raises(ConfigError, match="layers 0 to 2; got \\[3\\]"):
        view.chosen(layers=[3])


def test_models_whose_attention_cannot_be_reached_are_refused(
    family_model: Callable[..., Any],
) -> None:
    bloom = RagMiddleModel(family_model("bloom"), wordlevel(), self_check=False)
    with pytest.raises(UnsupportedArchitectureError, match="attention view cannot"):
        document_attention(bloom, [PROMPT])


PAIRS = TaskConfig(task="json_pairs", options={"keys": 3})
CONFIG = EvaluationConfig(
    title="Attention",
    models=(ModelConfig(name="a/model"),),
    tasks=(PAIRS,),
    methods=("ms_poe",),
    measurement={"limit": 2, "positions": [0, 2], "template": "raw"},
)


def shown(model: RagMiddleModel, view: AttentionView) -> list[Any]:
    entry = CONFIG.models[0]
    methods = CONFIG.methods_of(entry, Path(), model)
    return list(view.shown(model, CONFIG.asked(Path(), entry), methods))


@pytest.mark.parametrize(
    ("view", "panels", "shape", "axes"),
    [
        (AttentionView(show="layers"), 1, (3, 3), (0, 2)),
        (AttentionView(show="gold", layers=(1, 2)), 1, (2, 3), (1, 2)),
        (AttentionView(show="heads", layers=(0, 2)), 2, (4, 3), (0,)),
        (AttentionView(show="gold", panels="layers"), 3, (2, 3), (2,)),
        (AttentionView(show="gold", panels="heads", layers=(1,)), 4, (2, 3), (1,)),
    ],
    ids=str,
)
@pytest.mark.one_in(5)
def test_rows_panels_and_what_is_averaged(
    view: AttentionView, panels: int, shape: tuple[int, int], axes: Any, model: RagMiddleModel
) -> None:
    plain, scaled, changes = shown(model, view)
    assert (plain.numbers["method"], scaled.numbers["method"]) == ("none", "ms_poe")
    assert scaled.numbers["prompts"] == 2
    masses = np.array(list(scaled.numbers["documents"].values()))  # [positions, layers, h, D]
    images = [ax.images[0].get_array() for ax in scaled.figure.axes if ax.images]
    drawn = np.array([image for image in images if image.shape == shape])
    assert len(drawn) == panels
    assert np.allclose(
        np.sort(drawn.ravel()), np.sort(100 * masses.mean(axis=axes).ravel()), atol=1e-3
    )
    task = PAIRS.make(Path(), CONFIG.models[0])
    prompts = [task.prompt(item, position(2)) for item in task.items(2, 0)]
    expected = document_attention(model, prompts, method="ms_poe", template="raw")
    expected = expected.chosen(view.layers)
    assert np.allclose(masses[1], expected.documents, atol=1e-5)
    before = np.array(list(plain.numbers["documents"].values()))
    expected_change = masses.mean(axis=(0, 1, 2)) / before.mean(axis=(0, 1, 2)) - 1
    values, lows, highs = np.transpose(changes.numbers["changes"]["ms_poe"])
    assert np.allclose(values, expected_change, atol=1e-3)
    assert (lows <= values).all()
    assert (values <= highs).all()
