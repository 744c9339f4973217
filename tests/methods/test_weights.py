"""SIW, ZeroTuning and DSAS: what they scale, in any number format, window and backend."""

from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GraniteSWAConfig

from rag_middle.attention import AttentionCall, applied, base_attention, weights
from rag_middle.errors import MethodConfigError
from rag_middle.layout import PromptLayout
from rag_middle.methods import SIW, Method, ZeroTuning
from rag_middle.methods.dsas.attention import document_relevance, exponents
from rag_middle.methods.siw import attention as siw_attention
from rag_middle.methods.siw.attention import document_density
from tests import tiny_models
from tests.conftest import FamilyModel
from tests.contract.cases import LONG, SHORT, Prompt
from tests.contract.half import half_precision, rounded
from tests.contract.running import distance, generated, logits_under, prompt_logits
from tests.families import FAMILIES


def test_a_row_that_attends_to_one_token_only_stays_when_renormalised(llama: Any) -> None:
    """A document that starts the prompt: all weight of its first row is on the initial token."""
    prompt = Prompt(LONG.ids, PromptLayout(24, ((0, 1), (1, 24))))
    method = SIW(alpha_per_document=(0.0, 1.0), layers=(0, 1, 2), ablation="renormalised")
    logits = logits_under(llama, method, prompt)
    torch.testing.assert_close(logits, prompt_logits(llama, prompt), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "family", [name for name, family in FAMILIES.items() if family.traits.window]
)
def test_areas_are_found_in_what_the_last_token_sees(
    family: str, family_model: FamilyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer with a sliding window hides the documents before it from the last token."""
    model = family_model(family, "eager")
    rows: list[Tensor] = []

    def record(attention: Tensor, *rest: Any) -> Tensor:
        rows.append(attention)
        return document_density(attention, *rest)

    monkeypatch.setattr(siw_attention, "document_density", record)
    # Neutral factors: layer after layer, the hidden states stay the unmodified model's.
    logits_under(model, SIW(alpha_dense=1, alpha_sparse=1, layers=(0, 1, 2)))
    attentions = model(input_ids=LONG.ids, output_attentions=True).attentions
    sliding = FAMILIES[family].traits.sliding_layers
    for layer, (row, attention) in enumerate(zip(rows, attentions, strict=True)):
        assert int((row > 0).sum()) == (8 if layer in sliding else LONG.layout.length)
        if not FAMILIES[family].traits.sinks:  # they take another share of every head
            torch.testing.assert_close(row, attention[0, :, -1].mean(0), atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["mistral_sliding", "gemma3_text", "cohere2"])
def test_both_implementations_weigh_the_initial_token_alike(
    family: str, family_model: FamilyModel
) -> None:
    """Eager attention has its weights at hand; beside sdpa, one column of them is computed."""
    method = SIW(alpha_per_document=(0.0, 30.0, 0.4), layers=(0, 1, 2))
    logits = []
    for implementation in ("sdpa", "eager"):
        model = family_model(family, implementation)
        logits.append(logits_under(model, method))
    torch.testing.assert_close(*logits, atol=1e-3, rtol=0)  # float32, weights times 30


def test_the_initial_token_is_weighed_alike_where_the_backend_returns_no_weights(
    family_model: FamilyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: soft-capping is in the log-sum-exp then."""
    model = family_model("gemma2", "eager")
    method = SIW(alpha_per_document=(0.0, 30.0, 0.4), layers=(0, 1, 2))
    expected = logits_under(model, method)
    attend = weights.base_attention
    monkeypatch.setattr(weights, "base_attention", lambda call: (attend(call)[0], None))
    logits = logits_under(model, method)
    torch.testing.assert_close(logits, expected, atol=1e-3, rtol=0)  # float32, weights times 30


def _granite_swa(_: FamilyModel) -> Any:
    config = tiny_models.tiny(GraniteSWAConfig, layer_types=["full_attention"] * 3)
    return tiny_models.build("granite_swa", config, "eager")


@pytest.mark.parametrize("build", [lambda model: model("gpt_oss"), _granite_swa])
@pytest.mark.parametrize(
    "method",
    [SIW(alpha_per_document=(0.0, 30.0, 0.4), layers=(0, 1, 2)), ZeroTuning(factor=8.0)],
    ids=["siw", "zero_tuning"],
)
def test_sinks_take_their_share_of_the_initial_token(
    build: Callable[[FamilyModel], Any],
    method: Method,
    family_model: FamilyModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the model scales its output by that share, and returns weights without it."""
    model = build(family_model)
    logits = logits_under(model, method)

    def naive(_: Any, call: AttentionCall, token: int = 0) -> tuple[Tensor, Tensor]:
        keys = call.key.repeat_interleave(call.query.shape[1] // call.key.shape[1], dim=1)
        scores = call.query @ keys.transpose(2, 3) * call.options["scaling"] + call.mask
        sinks = call.options["s_aux"][None, :, None, None].expand(*scores.shape[:3], 1)
        shares = torch.cat((scores, sinks), dim=-1).softmax(-1)
        return base_attention(call)[0], shares[..., token]

    monkeypatch.setattr(weights.ModelAttention, "attend_and_weigh", naive)
    expected = logits_under(model, method)
    torch.testing.assert_close(logits, expected, atol=1e-3, rtol=0)  # float32, weights times 30


def test_half_precision_does_not_round_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager attention hands on rounded ones: what one near 1 leaves would be lost."""
    seen = []
    weigh = weights.ModelAttention.attend_and_weigh

    def spy(self: Any, call: AttentionCall, token: int = 0) -> tuple[Tensor, Tensor]:
        output, weight = weigh(self, call, token)
        seen.append(weight)
        return output, weight

    monkeypatch.setattr(weights.ModelAttention, "attend_and_weigh", spy)
    method = SIW(alpha_per_document=(0.0, 3.0, 0.4), layers=(0,))
    for implementation in ("sdpa", "eager"):
        model = FAMILIES["llama"].build(implementation).bfloat16()
        logits_under(model, method)
    torch.testing.assert_close(seen[0], seen[-1], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("factor", [1e-6, 1e-2, 100.0])
def test_the_initial_token_keeps_its_output_in_half_precision(
    factor: float, dtype: torch.dtype
) -> None:
    """It attends to nothing else: whatever the factor, all of its weight stays there."""
    model = FAMILIES["llama"].build().to(dtype)
    plain = prompt_logits(model, LONG)
    logits = logits_under(model, ZeroTuning(factor=factor))
    torch.testing.assert_close(logits[0], plain[0], atol=2e-2, rtol=0)
    assert logits.isfinite().all()


def test_heads_that_a_model_does_not_have_are_refused(llama: Any) -> None:
    for method in (ZeroTuning(factor=2, heads=(4,)), ZeroTuning(factor=(2, 2, 2))):
        with pytest.raises(MethodConfigError, match="has 4 heads"):
            logits_under(llama, method)


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


# -- sums over keys, where no fused kernel returns them --------------------------------------------


@pytest.mark.parametrize(
    ("family", "dtype", "tolerance"),
    [("gpt_oss", "float32", 1e-5), ("gemma2", "bfloat16", 2e-2)],  # sinks; soft caps
)
def test_sums_over_a_few_rows_at_a_time_are_those_of_all(
    family: str, dtype: str, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = half_precision(rounded(FAMILIES[family].build("eager")), dtype)
    blocks, logits = [], []
    sums = weights.ModelAttention._lse_in_blocks
    monkeypatch.setattr(
        weights.ModelAttention, "_lse_in_blocks", lambda *a: blocks.append(1) or sums(*a)
    )
    for block in (weights._BLOCK_ELEMENTS, 400):
        monkeypatch.setattr(weights, "_BLOCK_ELEMENTS", block)
        with applied(model, ZeroTuning(factor=3.0), [LONG.tokens, SHORT.tokens]):
            logits.append(generated(model, [LONG, SHORT])[1])
    assert distance(*logits) < tolerance
    assert blocks


# -- documents that are read densely ---------------------------------------------------------------


@pytest.mark.parametrize("length", [3, 5, 6, 7, 11, 13, 29])
@pytest.mark.parametrize("documents", [2, 3, 7, 10])
def test_documents_with_the_same_share_are_exactly_equal(length: int, documents: int) -> None:
    """Whatever the rounding of a division: the sign decides about a factor."""
    spans = tuple((i * length, (i + 1) * length) for i in range(documents))
    tokens = length * documents
    attended = [start + offset for start, _ in spans for offset in range(2)]
    attention = torch.ones(tokens)
    attention[attended] = 2.0
    layout = PromptLayout(tokens, spans)
    density = document_density(attention, layout, top_share=len(attended) / tokens)
    assert density.tolist() == [0.0] * documents
