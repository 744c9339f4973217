"""Look at a model's attention without changing it."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rag_middle.attention.frequencies import keep_frequencies
from rag_middle.attention.patch import Planner, applied, model_traits, modules_by_layer
from rag_middle.attention.seam import (
    AttentionCall,
    ConfigView,
    base_attention,
    config_views,
    handle_attention,
    handler_of,
    handlers_in_force,
)
from rag_middle.attention.traits import LayerTraits
from rag_middle.attention.turns import model_lock
from rag_middle.attention.weights import last_rows_attention
from rag_middle.errors import MethodConfigError, UnsupportedGenerationError
from rag_middle.tokens import TokenizedPrompt


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
    observers = {
        module: _Observer(traits.layers[layer]) for layer, module in sorted(modules.items())
    }
    with (
        model_lock(model),
        keep_frequencies(model),
        config_views(list(observers)),
        handle_attention({**handlers_in_force(), **observers}),
    ):
        model(input_ids=input_ids, use_cache=False)
    # Fetched when all is computed: a copy in every layer would wait for the device there.
    seen = torch.stack([observer.seen.cpu() for observer in observers.values()])
    return seen[..., -input_ids.shape[1] :]  # adapters may put virtual tokens before the prompt


class _Observer:
    """Lets one layer attend as it does and keeps the last row's weights."""

    def __init__(self, traits: LayerTraits) -> None:
        self._traits = traits
        self.seen = torch.empty(0, device="cpu")

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        sinks: Tensor | None = call.options.get("s_aux")
        last = call.query[:, :, -1:]
        self.seen = last_rows_attention(last, call.key, self._traits, sinks=sinks)[0, :, 0]
        return base_attention(call)


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
        handlers = handlers_in_force()
        probes = {
            module: _Probe(
                handlers[module].attend
                if isinstance(module.config, ConfigView)
                else base_attention,
                segments,
            )
            for _, module in sorted(modules.items())
        }
        unseen = [module for module in probes if not isinstance(module.config, ConfigView)]
        with config_views(unseen), handle_attention({**handlers, **probes}):
            model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    return torch.stack([probe.masses.cpu() for probe in probes.values()])


class _Probe:
    """Puts values of its own into all rows but the first, and keeps what the last token gets."""

    def __init__(
        self,
        attend: Callable[[AttentionCall], tuple[Tensor, Tensor | None]],
        segments: Tensor,
    ) -> None:
        self._attend = attend
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
