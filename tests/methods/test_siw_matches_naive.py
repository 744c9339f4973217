"""SIW against the whole matrix of attention weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GraniteSWAConfig

from rag_middle.attention import AttentionCall, applied, base_attention, weights
from rag_middle.layout import PromptLayout
from rag_middle.methods import SIW, Compose, Method, PositionalHiddenStates, ZeroTuning
from rag_middle.methods.siw import attention as siw_attention
from rag_middle.methods.siw.attention import document_density
from tests import tiny_models
from tests.conftest import FamilyModel
from tests.contract.cases import LONG, Prompt
from tests.contract.running import prompt_logits
from tests.families import FAMILIES
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


@pytest.mark.parametrize("token", [1, 6])  # the second is within a document of each prompt
@pytest.mark.parametrize(("name", "implementation"), WAYS)
def test_another_token_than_the_first(
    name: str, implementation: str, token: int, family_model: FamilyModel
) -> None:
    alphas = (0.0, 3.0, 0.4)
    assert_equal_to_naive(
        family_model(name, implementation),
        SIW(alpha_per_document=alphas, layers=(0, 2), token=token),
        NaiveSIW,
        documents=_documents,
        alphas=dict.fromkeys((0, 2), alphas),
        token=token,
    )


@pytest.mark.parametrize("token", [0, 6])
@pytest.mark.parametrize(("name", "implementation"), WAYS)
def test_renormalised_rows(
    name: str, implementation: str, token: int, family_model: FamilyModel
) -> None:
    alphas = (0.0, 3.0, 0.4)
    assert_equal_to_naive(
        family_model(name, implementation),
        SIW(alpha_per_document=alphas, layers=(0, 2), token=token, ablation="renormalised"),
        NaiveSIW,
        documents=_documents,
        alphas=dict.fromkeys((0, 2), alphas),
        token=token,
        renormalise=True,
    )


def test_a_row_that_attends_to_one_token_only_stays_when_renormalised(
    family_model: FamilyModel,
) -> None:
    """A document that starts the prompt: all weight of its first row is on the initial token."""
    model = family_model("llama")
    prompt = Prompt(LONG.ids, PromptLayout(24, ((0, 1), (1, 24))))
    method = SIW(alpha_per_document=(0.0, 1.0), layers=(0, 1, 2), ablation="renormalised")
    with applied(model, method, [prompt.tokens]):
        logits = prompt_logits(model, prompt)
    torch.testing.assert_close(logits, prompt_logits(model, prompt), atol=1e-5, rtol=0)


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
@pytest.mark.one_in(5)
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
    with applied(model, SIW(alpha_dense=1, alpha_sparse=1, layers=(0, 1, 2)), [LONG.tokens]):
        prompt_logits(model, LONG)
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
        with applied(model, method, [LONG.tokens]):
            logits.append(prompt_logits(model, LONG))
    torch.testing.assert_close(*logits, atol=1e-3, rtol=0)  # float32, weights times 30


@pytest.mark.parametrize("family", ["gemma2"])
def test_the_initial_token_is_weighed_alike_where_the_backend_returns_no_weights(
    family: str, family_model: FamilyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: soft-capping is in the log-sum-exp then."""
    model = family_model(family, "eager")
    method = SIW(alpha_per_document=(0.0, 30.0, 0.4), layers=(0, 1, 2))
    with applied(model, method, [LONG.tokens]):
        expected = prompt_logits(model, LONG)
    attend = weights.base_attention
    monkeypatch.setattr(weights, "base_attention", lambda call: (attend(call)[0], None))
    with applied(model, method, [LONG.tokens]):
        logits = prompt_logits(model, LONG)
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
    with applied(model, method, [LONG.tokens]):
        logits = prompt_logits(model, LONG)

    def naive(_: Any, call: AttentionCall, token: int = 0) -> tuple[Tensor, Tensor]:
        keys = call.key.repeat_interleave(call.query.shape[1] // call.key.shape[1], dim=1)
        scores = call.query @ keys.transpose(2, 3) * call.options["scaling"] + call.mask
        sinks = call.options["s_aux"][None, :, None, None].expand(*scores.shape[:3], 1)
        shares = torch.cat((scores, sinks), dim=-1).softmax(-1)
        return base_attention(call)[0], shares[..., token]

    monkeypatch.setattr(weights.ModelAttention, "attend_and_weigh", naive)
    with applied(model, method, [LONG.tokens]):
        expected = prompt_logits(model, LONG)
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
        with applied(model, method, [LONG.tokens]):
            prompt_logits(model, LONG)
    torch.testing.assert_close(seen[0], seen[-1], atol=1e-5, rtol=1e-4)


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
