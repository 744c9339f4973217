"""A model with exported settings does by itself what the method does to it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from rag_middle.attention import applied
from rag_middle.errors import MethodConfigError, UnsupportedArchitectureError
from rag_middle.layout import PromptLayout
from rag_middle.methods import (
    LPES,
    Method,
    PositionInterpolation,
    exported_rope_parameters,
    resolve_method,
)
from tests.families import FAMILIES
from tests.prompts import laid_out

IDS = torch.arange(1, 61)[None]


def exported(model: PreTrainedModel, method: Method) -> PreTrainedModel:
    config = copy.deepcopy(model.config)
    config.rope_parameters = exported_rope_parameters(method, config)
    other = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    other.load_state_dict(model.state_dict())
    return other


def logits(model: PreTrainedModel, method: Method) -> torch.Tensor:
    with torch.no_grad(), applied(model, method, [laid_out(PromptLayout(length=60))]):
        return model(IDS).logits


@pytest.mark.parametrize("family", ["llama", "llama_linear", "qwen3", "gemma3_text"])
def test_an_exported_model_needs_no_method(family: str) -> None:
    model, method = FAMILIES[family].build("sdpa"), PositionInterpolation(scale=1.5)
    by_itself = logits(exported(model, method), resolve_method("none"))
    # Rounding of frequencies, which grows with the position: 60 here.
    torch.testing.assert_close(by_itself, logits(model, method), atol=2e-4, rtol=1e-4)
    assert (by_itself - logits(model, resolve_method("none"))).abs().max() > 1e-2


def test_linear_scaling_multiplies() -> None:
    parameters = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}
    config = LlamaConfig(rope_parameters=parameters)
    assert exported_rope_parameters(LPES(factors=1.5), config) == parameters | {"factor": 6.0}
    assert config.rope_parameters["factor"] == 4.0


@pytest.mark.parametrize("kind", ["llama3", "yarn", "dynamic", "longrope"])
def test_other_scalings_are_refused(kind: str) -> None:
    config = LlamaConfig()
    config.rope_parameters = {"rope_type": kind, "factor": 2.0}
    with pytest.raises(UnsupportedArchitectureError, match=f"have {kind} scaling"):
        exported_rope_parameters(PositionInterpolation(scale=2), config)


def test_models_without_rotary_positions_are_refused() -> None:
    with pytest.raises(UnsupportedArchitectureError, match="no rope_parameters"):
        exported_rope_parameters(
            PositionInterpolation(scale=2), FAMILIES["gpt2"].build("sdpa").config
        )


@pytest.mark.parametrize(
    "method",
    [
        LPES(factors=(1.0, 1.5)),
        PositionInterpolation(scale=2, layers=(0,)),
        resolve_method("ms_poe"),
    ],
)
def test_what_differs_by_layer_is_refused(method: Any) -> None:
    with pytest.raises(MethodConfigError, match="no linear scaling of all layers"):
        exported_rope_parameters(method, LlamaConfig())


def test_a_scale_below_one_is_refused() -> None:
    with pytest.raises(MethodConfigError, match="factors from 1 on"):
        exported_rope_parameters(PositionInterpolation(scale=0.5), LlamaConfig())
