"""Models under ``torch.compile``: as they are under ``none``, refused where attention changes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from rag_middle import ContextPrompt, RagMiddleModel
from rag_middle.attention import applied, last_token_attention
from rag_middle.errors import UnsupportedArchitectureError
from rag_middle.methods import LPES, PositionalHiddenStates
from tests.contract.cases import ACTIVE, LONG
from tests.contract.running import distance, prompt_logits
from tests.families import FAMILIES
from tests.tiny_models import speaking
from tests.tokenizers import byte_level_bpe

PROMPT = ContextPrompt("Read.", ["Paris is a town.", "A river."], "Where?")
REFUSED = r"is compiled \(torch.compile\).*Pass the model as it was before"


def wrapped(model: PreTrainedModel) -> Any:
    return torch.compile(model, backend="eager")


def in_place(model: PreTrainedModel) -> Any:
    model.compile(backend="eager")
    return model


def by_layer(model: PreTrainedModel) -> Any:
    for layer in model.model.layers:
        layer.compile(backend="eager")
    return model


@pytest.mark.filterwarnings("ignore")  # of the compiler, about itself
@pytest.mark.parametrize("compiled", [wrapped, in_place, by_layer])
@pytest.mark.one_in(3)
def test_none_and_new_orders_work_and_the_rest_is_refused(
    compiled: Callable[[PreTrainedModel], Any],
) -> None:
    tokenizer = byte_level_bpe()
    expected = speaking("compiled", tokenizer, num_hidden_layers=1).generate(
        PROMPT, max_new_tokens=1
    )
    network = compiled(speaking("compiled", tokenizer, num_hidden_layers=1).model)
    for name in ("none", "long_context_reorder"):
        model = RagMiddleModel(network, tokenizer, method=name)
        assert model.generate(PROMPT, max_new_tokens=1).token_ids == expected.token_ids, name
    for method in ("pine", LPES(factors=1.5), "attn_rank"):
        for self_check in (True, False):
            with pytest.raises(UnsupportedArchitectureError, match=REFUSED):
                RagMiddleModel(network, tokenizer, method=method, self_check=self_check).generate(
                    PROMPT, max_new_tokens=1
                )
    with pytest.raises(UnsupportedArchitectureError, match=REFUSED):
        last_token_attention(network, torch.ones(1, 3, dtype=torch.long), "a method")


@pytest.mark.filterwarnings("ignore")  # of the compiler, about itself
@pytest.mark.parametrize("part", ["mlp", "self_attn.v_proj"])
@pytest.mark.parametrize("method", ["pine", PositionalHiddenStates(channels=(3,))])
@pytest.mark.slow
def test_parts_without_attention_may_be_wrapped(part: str, method: Any) -> None:
    torch.compiler.reset()  # what is compiled too often runs eagerly
    tokenizer = byte_level_bpe()
    network: Any = speaking("compiled", tokenizer, num_hidden_layers=1).model
    expected = RagMiddleModel(network, tokenizer, method=method).logits(PROMPT)
    layer = network.model.layers[0]
    layer.set_submodule(part, torch.compile(layer.get_submodule(part), backend="eager"))
    actual = RagMiddleModel(network, tokenizer, method=method).logits(PROMPT)
    torch.testing.assert_close(actual, expected)


def test_a_model_compiled_after_it_was_checked_is_refused() -> None:
    model = speaking("later", byte_level_bpe())
    model.generate(PROMPT, method="pine", max_new_tokens=1)
    in_place(model.model)
    with pytest.raises(UnsupportedArchitectureError, match=REFUSED):
        model.generate(PROMPT, method="pine", max_new_tokens=1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the compiler, about itself
@pytest.mark.parametrize("name", ["lpes", "pine"])
def test_a_rotary_module_may_be_compiled_by_itself(name: str) -> None:
    method = ACTIVE[name]
    model: Any = FAMILIES["llama"].build()
    with applied(model, method, [LONG.tokens]):
        expected = model.generate(LONG.ids, max_new_tokens=3)
    plain = prompt_logits(model, LONG)
    model.model.rotary_emb = torch.compile(model.model.rotary_emb, backend="eager")
    model.generate(LONG.ids, max_new_tokens=3)  # compiles
    with applied(model, method, [LONG.tokens]):
        assert torch.equal(model.generate(LONG.ids, max_new_tokens=3), expected)
    assert distance(prompt_logits(model, LONG), plain) < 1e-4
