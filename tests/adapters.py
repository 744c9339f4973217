"""Two adapters on a layer, with the switches that PEFT's layers have."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig

from tests.tiny_models import build, tiny

__all__ = ["Adapted", "adapted_llama"]


class Adapted(nn.Module):
    """As `peft.tuners.lora.Linear` keeps them: both adapters are parameters, whichever acts."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base
        self.extra = nn.ModuleDict({n: nn.Linear(64, base.out_features) for n in ("a", "b")})
        self.scaling = {"a": 1.0, "b": 0.5}
        self.merged_adapters: list[str] = []
        self._active_adapter = ["a"]
        self._disable_adapters = False

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.base_layer(hidden)
        for name in () if self._disable_adapters else self._active_adapter:
            out = out + self.scaling[name] * self.extra[name](hidden)
        return out


def adapted_llama(**options: Any) -> tuple[Any, Adapted]:
    """A tiny LLaMA with adapters on a layer, and that layer."""
    model: Any = build("adapters", tiny(LlamaConfig, **options), "sdpa")
    attention = model.model.layers[1].self_attn
    torch.manual_seed(0)
    attention.q_proj = Adapted(attention.q_proj).requires_grad_(False)
    return model, attention.q_proj
