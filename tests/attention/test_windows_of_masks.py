"""Sliding windows that models put into their masks, and attention modules do not mention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from transformers import PretrainedConfig, PreTrainedModel

from rag_middle.attention import applied, model_traits
from tests.contract.cases import EXAMPLES, ONE_DOCUMENT
from tests.contract.running import distance, prompt_logits
from tests.tiny_models import build, tiny

EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
CONFIGS: dict[str, tuple[type[PretrainedConfig], dict[str, Any]]] = {
    "phimoe": (hf.PhimoeConfig, EXPERTS),
    "qwen2_moe": (
        hf.Qwen2MoeConfig,
        EXPERTS | {"moe_intermediate_size": 32, "use_sliding_window": True, "max_window_layers": 3},
    ),
}
WINDOW = 8


def _model(name: str, implementation: str = "sdpa") -> PreTrainedModel:
    config_class, settings = CONFIGS[name]
    config = tiny(config_class, **settings | {"sliding_window": WINDOW})
    return build(name, config, implementation)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", list(CONFIGS))
def test_windows_are_read_off_masks(name: str, implementation: str) -> None:
    model = _model(name, implementation)
    configs = [module.config for module in model.modules() if hasattr(module, "config")]
    plain = prompt_logits(model, ONE_DOCUMENT)
    windows = [layer.sliding_window for layer in model_traits(model).layers.values()]
    assert WINDOW in windows
    assert set(windows) <= {WINDOW, None}
    if name == "phimoe":
        assert windows == [WINDOW] * 3
    after = [module.config for module in model.modules() if hasattr(module, "config")]
    assert all(one is other for one, other in zip(configs, after, strict=True))
    assert torch.equal(prompt_logits(model, ONE_DOCUMENT), plain)


@pytest.mark.parametrize("method", ["siw", "zero_tuning", "self_extend", "dysco", "dsas"])
@pytest.mark.parametrize("name", list(CONFIGS))
def test_neutral_methods_keep_to_the_window(name: str, method: str) -> None:
    model, example = _model(name), EXAMPLES[method]
    assert example.neutral_prompt.ids.shape[1] > WINDOW
    plain = prompt_logits(model, example.neutral_prompt)
    with applied(model, example.neutral, [example.neutral_prompt.tokens]):
        assert distance(prompt_logits(model, example.neutral_prompt), plain) < 1e-4
