"""CacheBlend against the paper's procedure, and at both ends of its share."""

from __future__ import annotations

import pytest
import torch

from rag_middle.attention import applied, model_traits
from rag_middle.errors import (
    MethodConfigError,
    UnsupportedArchitectureError,
    UnsupportedGenerationError,
)
from rag_middle.layout import PromptLayout
from rag_middle.methods import CacheBlend
from rag_middle.methods.document_blocks import kernels
from rag_middle.ops import scores as chunks
from rag_middle.ops.scores import ScoreRule
from tests.conftest import FamilyModel
from tests.contract.cases import LONG, ONE_DOCUMENT, SHORT, Prompt
from tests.contract.running import distance, prompt_logits
from tests.methods.against_naive import TOLERANCE, assert_equal_to_naive, naive
from tests.reference.cacheblend import NaiveCacheBlend
from tests.reference.document_blocks import NaiveBlocks

PROMPTS = (
    Prompt.random(PromptLayout(16, ((2, 6), (6, 9), (9, 14))), seed=31),
    Prompt.random(PromptLayout(11, ((1, 2), (2, 6), (6, 9))), seed=32),
)


@pytest.mark.parametrize(("share", "check_layer"), [(0.2, 1), (0.5, 1), (0.3, 2)])
@pytest.mark.parametrize(("name", "implementation"), [("llama", "sdpa"), ("qwen3", "eager")])
def test_deviating_tokens_are_recomputed(
    share: float, check_layer: int, name: str, implementation: str, family_model: FamilyModel
) -> None:
    assert_equal_to_naive(
        family_model(name, implementation),
        CacheBlend(recompute_share=share, check_layer=check_layer),
        NaiveCacheBlend,
        PROMPTS,
        documents=lambda prompt: prompt.layout.documents,
        share=share,
        check_layer=check_layer,
    )


@pytest.mark.parametrize("check_layer", [1, 2])
def test_without_recomputing_documents_are_read_as_windows_and_stand_in_order(
    check_layer: int, family_model: FamilyModel
) -> None:
    model = family_model("llama")
    method = CacheBlend(recompute_share=0, check_layer=check_layer)
    assert_equal_to_naive(
        model,
        method,
        NaiveBlocks,
        PROMPTS,
        documents=lambda prompt: prompt.layout.documents,
        placement="order",
    )
    # What tokens after the documents read is what the smallest share leaves in the cache.
    twin = naive(NaiveCacheBlend, model, LONG, documents=LONG.layout.documents)
    with applied(model, method, [LONG.tokens]):
        logits = prompt_logits(model, LONG)[LONG.layout.suffix_start :]
    assert distance(logits, twin.logits(LONG.ids[0])[LONG.layout.suffix_start :]) < TOLERANCE


@pytest.mark.parametrize("check_layer", [1, 2])
def test_recomputing_everything_is_the_unmodified_model(
    check_layer: int, family_model: FamilyModel
) -> None:
    model = family_model("llama")
    plain = prompt_logits(model, LONG)
    for prompt, share in ((LONG, 1), (ONE_DOCUMENT, 0.0), (ONE_DOCUMENT, 0.4)):
        method = CacheBlend(recompute_share=share, check_layer=check_layer)
        with applied(model, method, [prompt.tokens]):
            assert distance(prompt_logits(model, prompt), plain) < TOLERANCE


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss", "llama"])
@pytest.mark.parametrize("alive", [1, 200, 10**6])
def test_chosen_columns_attend_as_in_the_whole_matrix(
    family: str, alive: int, family_model: FamilyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    traits = next(iter(model_traits(family_model(family)).layers.values()))
    for module in (kernels, chunks):
        monkeypatch.setattr(module, "scores_at_once", lambda device: alive)
    generator = torch.Generator().manual_seed(5)
    q = torch.randn(2, 4, 9, 8, generator=generator)
    k, v = (torch.randn(2, 2, 9, 8, generator=generator) for _ in range(2))
    sinks = torch.randn(4, generator=generator) if traits.sinks else None
    rule = ScoreRule(scale=0.4, softcap=traits.softcap)
    columns = torch.tensor([0, 3, 4, 8])
    scores = rule.cap_(q @ k.repeat_interleave(2, 1).transpose(2, 3) * rule.scale)
    scores.masked_fill_(torch.ones(9, 9).triu(1).bool(), -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks[None, :, None, None].expand(2, 4, 9, 1)), dim=3)
    expected = scores.softmax(-1)[..., :9] @ v.repeat_interleave(2, 1)
    out = kernels.attend_from_columns(q[:, :, columns], k, v, columns, rule, sinks)
    assert distance(out, expected[:, :, columns]) < 1e-5


def test_what_is_refused(family_model: FamilyModel) -> None:
    model = family_model("llama")
    with (
        pytest.raises(MethodConfigError, match="do not exist"),
        applied(model, CacheBlend(check_layer=9), [SHORT.tokens]),
    ):
        pass
    with (
        applied(model, CacheBlend(), [SHORT.tokens]),
        pytest.raises(UnsupportedGenerationError, match="call the model"),
    ):
        model.model(SHORT.ids)
    for family in ("gpt2", "bloom", "qwen3_next"):
        with pytest.raises(UnsupportedArchitectureError):
            CacheBlend().plan((SHORT.tokens,), model_traits(family_model(family)))
