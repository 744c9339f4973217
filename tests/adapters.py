"""What libraries of adapters do with a model: wrappers around it, and layers with switches."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig

from tests.tiny_models import build, tiny

__all__ = ["Adapted", "PromptTuned", "Wrapper", "adapted_llama"]


class Wrapper(nn.Module):
    """Generates with the model inside."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.base, name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the model inside."""
        return self.base(*args, **kwargs)


class PromptTuned(Wrapper):
    """Puts virtual tokens before all that it is given."""

    def __init__(self, base: nn.Module, tokens: int = 5) -> None:
        super().__init__(base)
        embeddings = self.base.get_input_embeddings().weight  # type: ignore[operator]
        generator = torch.Generator().manual_seed(0)
        self.virtual = torch.randn(tokens, embeddings.shape[1], generator=generator)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **options: Any
    ) -> Any:
        """Logits of the virtual tokens come first."""
        rows = len(input_ids)
        own = self.base.get_input_embeddings()(input_ids)  # type: ignore[operator]
        states = torch.cat((self.virtual.expand(rows, -1, -1), own), dim=1)
        if attention_mask is not None:
            shown = attention_mask.new_ones(rows, len(self.virtual))
            attention_mask = torch.cat((shown, attention_mask), dim=1)
        options.pop("position_ids", None)
        return self.base(inputs_embeds=states, attention_mask=attention_mask, **options)


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
