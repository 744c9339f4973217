"""Wrappers that do with a model what libraries of adapters do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["PromptTuned", "Wrapper"]


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
