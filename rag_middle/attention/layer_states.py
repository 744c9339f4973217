"""What one layer of the unmodified model attends with, kept for methods to go on from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rag_middle.attention.rotary import RotaryCall, RotaryTables
from rag_middle.attention.seam import (
    AttentionCall,
    base_attention,
    cache_argument,
    handler_of,
    keyword_arguments,
)
from rag_middle.attention.traits import LayerTraits

__all__ = ["LayerStates"]


class LayerStates:
    """What one layer of the unmodified model attended with; recorded while it attends as ever.

    Attributes:
        module: the attention module.
        traits: what is known of it.
        arguments: of the module, by name, without its cache.
        key: rotated, `[b, g, n, d]`.
        value: `[b, g, n, dv]`.
        tables: rotary calls of the pass.
    """

    def __init__(self, module: nn.Module, traits: LayerTraits, tables: RotaryTables) -> None:
        self.module = module
        self.traits = traits
        self.tables = tables
        self.arguments: dict[str, Any] = {}
        self.key = torch.empty(0)
        self.value = torch.empty(0)

    @property
    def rotary(self) -> RotaryCall | None:
        """The rotary call of the pass; ``None`` in a layer without rotary embedding."""
        return self.tables.of(self.traits.layer_type) if self.traits.uses_rope else None

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Forward pre-hook: keep the module's arguments, but no cache."""
        if handler_of(module) is self:
            self.arguments = keyword_arguments(module, args, kwargs)
            self.arguments.pop(cache_argument(module) or "", None)

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        """Let the model attend, and keep what it attends with."""
        self.key, self.value = call.key, call.value
        return base_attention(call)
