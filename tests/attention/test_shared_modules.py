"""Models that share modules: requests take turns, and nothing is left on what they share."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, MistralConfig, PreTrainedModel, PreTrainedTokenizerFast

from rag_middle import ContextPrompt
from rag_middle.attention import model_lock, model_traits
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import Method, ParallelContextWindows, SelfExtend, ZeroTuning, method_name
from tests.adapters import Wrapper
from tests.contract.running import distance, is_free, logits_under
from tests.tiny_models import build, tiny
from tests.tokenizers import byte_level_bpe


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return byte_level_bpe(bos=True)


@pytest.fixture
def base(tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    return build("shared", tiny(LlamaConfig, vocab_size=len(tokenizer)), "sdpa")


def twin(base: PreTrainedModel) -> PreTrainedModel:
    """Another model with all of this one's layers."""
    other = build("other", base.config, "sdpa")
    other.model = base.model
    return other


# -- the lock --------------------------------------------------------------------------------------


def test_models_around_one_network_have_one_lock(base: PreTrainedModel) -> None:
    others = [twin(base), Wrapper(base), base.model]
    apart = build("apart", base.config, "sdpa")
    with model_lock(base):
        assert not any(map(is_free, others))
        assert is_free(apart)
        with model_lock(others[0]):
            assert not is_free(base)
        assert not is_free(base)
    assert all(map(is_free, [base, *others]))


# -- what is found out once ------------------------------------------------------------------------


def test_traits_are_found_anew_where_a_module_was_replaced(base: PreTrainedModel) -> None:
    class Bent(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input).tanh()

    wrapper = twin(base)
    assert model_traits(base) is model_traits(base)
    assert model_traits(wrapper).layers[1].affine_projections
    attention: Any = base.model.layers[1].self_attn
    attention.q_proj = Bent(64, 64, bias=False)
    for model in (base, wrapper):
        assert [t.affine_projections for t in model_traits(model).layers.values()] == [
            True,
            False,
            True,
        ]


@pytest.mark.parametrize("setting", ["scaling", "window"])
@pytest.mark.parametrize(
    "method",
    [ParallelContextWindows(), ZeroTuning(factor=0.5), SelfExtend(group=2, window=8)],
    ids=method_name,
)
def test_settings_changed_between_requests_count(setting: str, method: Method) -> None:
    model: Any = build("set", tiny(MistralConfig, sliding_window=None), "sdpa")
    before = logits_under(model, method)
    if setting == "window":
        model.config.sliding_window = 5
    else:
        for layer in model.model.layers:
            layer.self_attn.scaling *= 2
    unknown = copy.deepcopy(model)
    after = logits_under(model, method)
    torch.testing.assert_close(after, logits_under(unknown, method))
    assert distance(after, before) > 0.01


def test_what_is_known_of_a_model_does_not_keep_it(
    base: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    wrapper = twin(base)
    model = RagMiddleModel(wrapper, tokenizer, method="pine")
    model.score(ContextPrompt("Read.", ["One.", "Two."], "Why?"), " fox")
    gone = weakref.ref(wrapper)
    del model, wrapper
    gc.collect()
    assert gone() is None
    assert is_free(base)
