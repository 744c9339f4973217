"""Documents that do not attend to each other, against one query and one key at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rag_middle.attention import applied
from rag_middle.layout import PromptLayout
from rag_middle.methods import (
    APE,
    Method,
    NoInterDocumentAttention,
    ParallelContextWindows,
    SetBasedPrompting,
    StructuredPrompting,
)
from rag_middle.ops import scores
from tests.conftest import FamilyModel
from tests.contract.cases import LONG, SHORT, Prompt
from tests.contract.running import distance, generated, prompt_logits
from tests.methods.against_naive import TOLERANCE, assert_equal_to_naive
from tests.prompts import laid_out
from tests.reference.document_blocks import NaiveBlocks

#: One query at a time is slow: short prompts, with documents of similar and of other lengths.
PROMPTS = (
    Prompt.random(PromptLayout(16, ((2, 6), (6, 9), (9, 14))), seed=31),
    Prompt.random(PromptLayout(9, ((1, 2), (2, 6), (6, 7))), seed=32),
)
METHODS: dict[str, tuple[Method, dict[str, Any]]] = {
    "kept": (NoInterDocumentAttention(), {"placement": "kept"}),
    "last": (NoInterDocumentAttention(equal_positions=True), {"placement": "last"}),
    "start": (ParallelContextWindows(), {"placement": "start"}),
    "end": (ParallelContextWindows(right_indentation=True), {"placement": "end"}),
    "set": (SetBasedPrompting(), {"placement": "start"}),
    "set_kept": (SetBasedPrompting(parallel_positions=False), {"placement": "kept"}),
    "structured": (StructuredPrompting(), {"placement": "end", "one_of_many": True}),
    "ape": (
        APE(temperature=0.5, scale=0.7),
        {"placement": "start", "temperature": 0.5, "scale": 0.7},
    ),
    "ape_wide": (APE(temperature=1.5, scale=1), {"placement": "start", "temperature": 1.5}),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("name", "implementation"), [("llama", "sdpa"), ("qwen3", "eager")])
@pytest.mark.one_in(5)
def test_documents_are_read_apart(
    name: str, implementation: str, method: str, family_model: FamilyModel
) -> None:
    ours, settings = METHODS[method]
    assert_equal_to_naive(
        family_model(name, implementation),
        ours,
        NaiveBlocks,
        PROMPTS,
        documents=lambda prompt: prompt.layout.documents,
        **settings,
    )


def test_a_set_is_a_mask_and_positions_that_any_model_takes(family_model: FamilyModel) -> None:
    """Set-based prompting beside transformers itself, told mask and positions by hand."""
    model, layout = family_model("llama"), LONG.layout
    first, last = layout.prefix_tokens, layout.suffix_start
    mask = torch.ones(layout.length, layout.length, dtype=torch.bool).tril()
    positions = torch.arange(layout.length)
    for start, end in layout.documents:
        mask[start:end, first:start] = False
        positions[start:end] = torch.arange(first, first + end - start)
    positions[last:] += first + max(layout.document_lengths) - last
    expected = model(
        input_ids=LONG.ids, attention_mask=mask[None, None], position_ids=positions[None]
    ).logits[0]
    with applied(model, SetBasedPrompting(), [LONG.tokens]):
        assert distance(prompt_logits(model, LONG), expected) < TOLERANCE


@pytest.mark.parametrize("method", ["start", "end", "ape"])
def test_a_document_reads_as_it_does_alone(method: str, family_model: FamilyModel) -> None:
    model, (ours, _) = family_model("llama"), METHODS[method]
    with applied(model, ours, [LONG.tokens]):
        together = prompt_logits(model, LONG)
    first = LONG.layout.prefix_tokens
    for start, end in LONG.layout.documents:
        ids = torch.cat((LONG.ids[:, :first], LONG.ids[:, start:end]), dim=1)
        alone = model(input_ids=ids).logits[0]
        assert distance(together[start:end], alone[first:]) < TOLERANCE


@pytest.mark.parametrize("alive", [1, 60])
def test_rows_of_later_tokens_a_few_at_a_time(
    alive: int, family_model: FamilyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, method, prompts = family_model("gpt_oss"), APE(), [SHORT.tokens, LONG.tokens]
    with applied(model, method, prompts):
        _, expected = generated(model, [SHORT, LONG])
    monkeypatch.setattr(scores, "scores_at_once", lambda device: alive)
    with applied(model, method, prompts):
        _, logits = generated(model, [SHORT, LONG])
    assert distance(logits, expected) < TOLERANCE


@pytest.mark.parametrize("method", METHODS)
def test_empty_documents_and_prompts_without_documents(
    method: str, family_model: FamilyModel
) -> None:
    model, (ours, _) = family_model("llama"), METHODS[method]
    plain = prompt_logits(model, LONG)
    neutral = APE(temperature=1, scale=1) if isinstance(ours, APE) else ours
    for documents in ((), ((4, 4),), ((3, 3), (3, 19), (19, 19))):
        with applied(model, neutral, [laid_out(PromptLayout(24, documents))]):
            assert distance(prompt_logits(model, LONG), plain) < TOLERANCE
    with applied(model, ours, [laid_out(PromptLayout(24, ()))]):
        assert distance(prompt_logits(model, LONG), plain) < TOLERANCE


@pytest.mark.parametrize("family", ["llama", "phimoe"])
@pytest.mark.parametrize("name", ["kept", "end", "structured"])
def test_empty_documents_alone_change_nothing(
    name: str, family: str, family_model: FamilyModel
) -> None:
    """The rotary module of Phi-3.5-MoE asks for the largest of the positions it is given."""
    model = family_model(family)
    with applied(model, METHODS[name][0], [laid_out(PromptLayout(24, ((3, 3), (3, 3))))]):
        logits = prompt_logits(model, LONG)
    assert distance(logits, prompt_logits(model, LONG)) < TOLERANCE
