"""Digests of what a model computes: weights, number format, config, adapters, hooks."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, PreTrainedModel

from rag_middle.attention import applied
from rag_middle.fingerprint import fingerprint
from rag_middle.methods import PINE
from tests.conftest import FamilyModel
from tests.contract.cases import LONG
from tests.contract.running import prompt_logits
from tests.tiny_models import build, tiny

CHANGES: dict[str, Callable[[Any], object]] = {
    "weights in place": lambda model: model.lm_head.weight.data.mul_(1.5),
    "other weights": lambda model: setattr(
        model.lm_head, "weight", torch.nn.Parameter(model.lm_head.weight + 1)
    ),
    "buffer": lambda model: model.model.rotary_emb.inv_freq.mul_(2),
    "number format": lambda model: model.bfloat16(),
    "config": lambda model: setattr(model.config, "rms_norm_eps", 0.1),
    "attention": lambda model: model.set_attn_implementation("eager"),
    "hook": lambda model: model.lm_head.register_forward_hook(lambda _, __, output: 2 * output),
    "adapter": lambda model: setattr(model.lm_head, "_active_adapter", ["other"]),
}


@pytest.fixture
def model() -> PreTrainedModel:
    return build("fingerprint", tiny(LlamaConfig), "sdpa")


@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_what_decides_the_next_pass_changes_it(change: str, model: PreTrainedModel) -> None:
    before = fingerprint(model)
    assert fingerprint(build("fingerprint", tiny(LlamaConfig), "sdpa")) == before
    CHANGES[change](model)
    assert fingerprint(model) != before


def test_a_request_of_another_thread_leaves_it(family_model: FamilyModel) -> None:
    model, found = family_model("llama"), list[str]()
    before = fingerprint(model)
    with applied(model, PINE(), [LONG.tokens]):
        prompt_logits(model, LONG)
        thread = threading.Thread(target=lambda: found.append(fingerprint(model)))
        thread.start()
        thread.join()
    assert found == [before]
