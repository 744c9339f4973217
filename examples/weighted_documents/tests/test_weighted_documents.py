"""The method against its formula, written out with the matrix of all attention weights."""

from __future__ import annotations

from math import exp

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from weighted_documents import TrustedValues, WeightedDocuments

from rag_middle.attention import applied
from rag_middle.authoring import Method
from rag_middle.errors import MethodConfigError, PromptError
from rag_middle.tokens import TokenizedPrompt


def prompt(scores: tuple[float, ...] | None) -> TokenizedPrompt:
    return TokenizedPrompt.assembled(
        prefix=[1, 2],
        documents=[[3, 4, 5], [6, 7]],
        suffix=[8, 9, 10],
        document_ids=["a", "b"],
        scores=scores,
    )


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    """One layer that shows its attention weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    config._attn_implementation = "eager"
    model = LlamaForCausalLM(config)
    model.eval()
    return model


@pytest.mark.parametrize(
    ("method", "first"), [(WeightedDocuments(strength=2.0), 7), (TrustedValues(strength=2.0), 0)]
)
def test_what_is_read_from_documents_is_multiplied(
    method: Method, first: int, model: LlamaForCausalLM
) -> None:
    ids = torch.tensor([prompt(None).input_ids])
    seen: list[torch.Tensor] = []
    attention = model.model.layers[0].self_attn
    hook = attention.o_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        plain = model(ids, output_attentions=True)
        with applied(model, method, [prompt((0.9, 0.4))]):
            model(ids)
        hidden = model.model.layers[0].input_layernorm(model.model.embed_tokens(ids))
        values = attention.v_proj(hidden)[0]  # [n, d]: one key/value head
    hook.remove()
    factors = torch.ones(10)
    factors[5:7] = exp(2.0 * (0.4 - 0.9))
    weights = plain.attentions[0][0].clone()  # [h, n, n]
    weights[:, first:] *= factors
    expected = torch.einsum("hij,jd->ihd", weights, values).flatten(1)
    torch.testing.assert_close(seen[-1][0], expected, atol=1e-6, rtol=0)  # float32 sums


def test_documents_need_scores_and_strength_is_a_number(model: LlamaForCausalLM) -> None:
    with pytest.raises(MethodConfigError, match="strength must be a finite number"):
        WeightedDocuments(strength=float("nan"))
    with (
        pytest.raises(PromptError, match="score"),
        applied(model, WeightedDocuments(), [prompt(None)]),
    ):
        pass
