"""Sliding windows that only the masks of a model have, and its attention modules do not mention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rag_middle.attention.seam import (
    AttentionCall,
    ConfigView,
    base_attention,
    config_views,
    handle_attention,
    handler_of,
    in_eval_mode,
)

#: Less than the tokens of the pass in which masks are looked at.
_NARROW = 3


class _NarrowView(ConfigView):
    """A decoder's config that says, while this thread runs a request, that windows are narrow."""

    @property
    def _attn_implementation(self) -> str | None:
        name: str | None = object.__getattribute__(self, "wrapped")._attn_implementation
        return name

    @property
    def sliding_window(self) -> int | None:
        """The window that masks are made of."""
        if handler_of(object.__getattribute__(self, "_module")) is not None:
            return _NARROW
        window: int | None = object.__getattribute__(self, "wrapped").sliding_window
        return window


def windows_of_masks(
    model: nn.Module, config: Any, by_layer: Mapping[int, nn.Module], tokens: Tensor
) -> dict[int, int]:
    """The windows of layers that the model's masks have, by layer.

    A window shows in masks of prompts that are longer. So the model reads a few tokens once more,
    with a config that says that the window is shorter than those.

    Args:
        model: its forward pass is run.
        config: of the decoder, not of a larger model that it is part of.
        by_layer: attention modules that pass no window to attention.
        tokens: any, `[1, n]`.
    """
    width = getattr(config, "sliding_window", None)
    modules = list(by_layer.values())
    if not modules or not isinstance(width, int) or width < 1:
        return {}
    wider = width - _NARROW
    windows: dict[int, int] = {}

    def look(call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        mask = call.mask
        if isinstance(mask, Tensor) and mask.ndim == 4 and not mask.is_meta:
            last = mask[0, 0, -1]
            seen = last if last.dtype == torch.bool else last == 0
            if not bool(seen[0]):
                layer: int = call.module.layer_idx  # type: ignore[assignment]
                windows[layer] = wider + int(seen.sum())
        return base_attention(call)

    parts = [p for p in model.modules() if isinstance(p, PreTrainedModel) and p.config is config]
    try:
        for part in parts:
            part.config = _NarrowView(config, modules[0])  # type: ignore[assignment]
        with (
            in_eval_mode(model),
            torch.no_grad(),
            config_views(modules),
            handle_attention(dict.fromkeys(modules, look)),
        ):
            model(input_ids=tokens, use_cache=False)
    finally:
        for part in parts:
            part.config = config
    return windows
