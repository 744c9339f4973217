"""Attention of the last token of a prompt to segments of it, under any method."""

from __future__ import annotations

from math import ceil

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rag_middle.attention import (
    AttentionCall,
    Planner,
    applied,
    base_attention,
    config_views,
    model_traits,
    modules_by_layer,
)
from rag_middle.attention.seam import AttentionHandler, ConfigView, handle_attention, handler_of
from rag_middle.errors import UnsupportedGenerationError
from rag_middle.tokens import TokenizedPrompt


@torch.no_grad()
def last_token_masses(
    model: PreTrainedModel, method: Planner, prompt: TokenizedPrompt, segments: Tensor
) -> Tensor:
    """What the last token's attention puts on segments of a prompt, under a method.

    An attention output is linear in the values, whatever gave the weights. So the prompt goes
    through the model in several rows of a batch, all with the same queries and keys. The first row
    keeps its values; its outputs go on to the next layer, in every row. The second has zeros for
    values, and its outputs are subtracted from those below: a method may add to values. The values
    of all others say to which segment a token belongs, so that their outputs are the masses.

    Args:
        model: left as it is found.
        method: that the model runs under.
        prompt: in the method's order of documents.
        segments: `[l, S]`, one where a token belongs to a segment and zero elsewhere.

    Returns:
        `[layers, h, S]` in float32 on the CPU, layers with softmax attention only. Weights that a
        method scales without normalising them again do not sum to one.

    Raises:
        As `applied`.
        UnsupportedArchitectureError: the attention layers cannot be reached.
        UnsupportedGenerationError: the method reads tokens a second time.
    """
    traits = model_traits(model)
    traits.require_layers("The attention view")
    modules = modules_by_layer(model, traits)
    # Half: latent attention has values that are narrower than its queries.
    narrowest = min(max(1, layer.head_size // 2) for layer in traits.layers.values())
    rows = 2 + ceil(segments.shape[1] / narrowest)
    ids = torch.tensor([prompt.input_ids], device=model.device).expand(rows, -1)
    with applied(model, method, [prompt], prepared=True):
        probes = {
            module: _Probe(handler_of(module), segments) for _, module in sorted(modules.items())
        }
        attend = {module: probe.attend for module, probe in probes.items()}
        unseen = [module for module in probes if not isinstance(module.config, ConfigView)]
        with config_views(unseen), handle_attention(attend):
            model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    return torch.stack([probe.masses.cpu() for probe in probes.values()])


class _Probe:
    """Puts values of its own into all rows but the first, and keeps what the last token gets."""

    def __init__(self, handler: AttentionHandler | None, segments: Tensor) -> None:
        self._attend = handler or base_attention
        self._segments = segments
        self.masses = torch.empty(0, device="cpu")

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        rows, _, tokens, width = call.value.shape
        if tokens != len(self._segments) or self.masses.numel():
            raise UnsupportedGenerationError(
                "This method reads tokens a second time, in a pass with attention of its own: look "
                "at the unmodified model, or at a method of one pass."
            )
        count = self._segments.shape[1]
        values = call.value.new_zeros(tokens, (rows - 2) * width)
        values[:, :count] = self._segments
        call.value = call.value.clone()
        call.value[1] = 0
        # [rows - 2, 1, l, dv]: every head has the same values.
        call.value[2:] = values.view(tokens, rows - 2, width).transpose(0, 1)[:, None]
        output, _ = self._attend(call)  # [rows, l, h, dv]
        last = output[1:, -1].float()
        self.masses = (last[1:] - last[0]).transpose(0, 1).flatten(1)[:, :count]
        return output[:1].expand_as(output), None
