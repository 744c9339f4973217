"""Look at a model's attention without changing it."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rag_middle.attention.locks import model_lock
from rag_middle.attention.patch import model_traits, modules_by_layer
from rag_middle.attention.rotary import keep_frequencies
from rag_middle.attention.seam import (
    AttentionCall,
    base_attention,
    config_views,
    handle_attention,
    handler_of,
)
from rag_middle.attention.weights import last_rows_attention
from rag_middle.errors import MethodConfigError


@torch.no_grad()
def last_token_attention(model: PreTrainedModel, input_ids: Tensor, asked_by: str) -> Tensor:
    """Attention weights of the last token of one prompt, in a pass of the unmodified model.

    Args:
        model: left as it is found.
        input_ids: `[1, l]`, without padding.
        asked_by: the method, for the message of an error.

    Returns:
        `[layers, h, l]` in float32 on the CPU, layers with softmax attention only. Windows,
        soft-capping and sinks are those of the model. What goes to virtual tokens of an adapter
        (prompt tuning, prefix tuning) is left out.

    Raises:
        UnsupportedArchitectureError: the attention layers cannot be reached.
        MethodConfigError: inside a block in which this model runs under a method.
    """
    traits = model_traits(model)
    traits.require_layers(asked_by)
    modules = modules_by_layer(model, traits)
    if any(handler_of(module) is not None for module in modules.values()):
        raise MethodConfigError(
            "This model already runs under a method in this thread: leave the applied() block "
            "before its attention is looked at."
        )
    seen: dict[int, Tensor] = {}

    def attend(call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        layer: int = call.module.layer_idx  # type: ignore[assignment]
        sinks: Tensor | None = call.options.get("s_aux")
        last, of_layer = call.query[:, :, -1:], traits.layers[layer]
        seen[layer] = last_rows_attention(last, call.key, of_layer, sinks=sinks)[0, :, 0]
        return base_attention(call)

    with (
        model_lock(model),
        keep_frequencies(model),
        config_views(list(modules.values())),
        handle_attention(dict.fromkeys(modules.values(), attend)),
    ):
        model(input_ids=input_ids, use_cache=False)
    # Fetched when all is computed: a copy in every layer would wait for the device there.
    whole = torch.stack([seen[layer].cpu() for layer in sorted(seen)])
    return whole[..., -input_ids.shape[1] :]  # adapters may put virtual tokens before the prompt
