"""What the unmodified model makes of prompts, kept to go on from under one method after another.

Where a method changes the attention of a prompt's last tokens only, all tokens before them have
the hidden states of the unmodified model, whatever the method's parameters. Only what the cache
holds of them differs, and that follows from hidden states that are known: nothing is read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from rag_middle.attention.adapters import invocation_of, puts_virtual_tokens
from rag_middle.attention.patch import model_lock, model_traits, modules_by_layer
from rag_middle.attention.plan import AttentionPlan
from rag_middle.attention.probe import rotary_modules
from rag_middle.attention.rotary import RotaryCall, RotaryTables
from rag_middle.attention.seam import (
    AttentionCall,
    base_attention,
    cache_argument,
    config_views,
    handle_attention,
    handler_of,
    handlers_in_force,
    keyword_arguments,
)
from rag_middle.attention.traits import LayerTraits
from rag_middle.errors import MethodConfigError
from rag_middle.layout import PromptLayout


def can_share_prompts(model: PreTrainedModel) -> bool:
    """Whether what this model makes of the beginning of a prompt may be gone on from.

    Not where its attention cannot be reached, nor where a layer keeps something else than every
    token's key and value (windows, linear attention), nor where rotary frequencies depend on the
    length of what is read, or an adapter on which tokens are read together.
    """
    traits = model_traits(model)
    rope_type = traits.rope_type or ""
    return (
        bool(traits.layers)
        and not traits.mixed
        and not any(kind in rope_type for kind in ("dynamic", "longrope"))
        and not any(layer.sliding_window for layer in traits.layers.values())
        and not invocation_of(model)
        and not puts_virtual_tokens(model)
    )


@dataclass(frozen=True, slots=True)
class PromptStates:
    """What the unmodified model made of the first columns of a batch of prompts.

    Memory: keys and values of these columns, and the attention input of every layer.
    """

    _layers: dict[int, LayerStates]
    _tables: RotaryTables

    @property
    def columns(self) -> int:
        """How many columns were read, padding included."""
        return int(self._layers[0].key.shape[2])

    def cached_under(self, plan: AttentionPlan, layouts: Sequence[PromptLayout]) -> DynamicCache:
        """A cache of these columns as the plan would have made it, to go on from under the plan.

        What was read is left as it is, to be used again.

        Args:
            plan: that changes the attention of last tokens only
                (`AttentionPlan.last_tokens_changed`), none of them among these columns.
            layouts: one per row, of the whole prompts.

        Raises:
            MethodConfigError: another plan.
        """
        width = max(layout.length for layout in layouts)
        changed = plan.last_tokens_changed
        if changed is None or self.columns > width - changed:
            raise MethodConfigError(
                f"The first {self.columns} of {width} columns were read by the unmodified model, "
                "and this plan changes their attention: run the whole prompt under it."
            )
        paddings = [width - layout.length for layout in layouts]
        cache = DynamicCache()
        for index, layer in sorted(self._layers.items()):
            key, value = layer.key, layer.value
            for change in plan.layers.get(index, ()):
                key, value = change.cached_states(layer, paddings)
            cache.update(key, value, index)
        return cache


@contextmanager
def reading(model: PreTrainedModel) -> Iterator[PromptStates]:
    """Keep what the unmodified model makes of the one forward pass inside the block.

    Other threads wait for the model. It is left as it is found.

    Args:
        model: see `can_share_prompts`.

    Yields:
        What there is to know once the pass is over.

    Raises:
        UnsupportedArchitectureError: the attention layers cannot be reached.
        MethodConfigError: inside a block in which this model runs under a method.
    """
    traits = model_traits(model)
    traits.require_layers("sharing prompts")
    modules = modules_by_layer(model, traits)
    if any(handler_of(module) is not None for module in modules.values()):
        raise MethodConfigError(
            "This model already runs under a method in this thread: leave the applied() block "
            "before prompts are read for several methods."
        )
    tables = RotaryTables()
    recorders = {
        layer: LayerStates(module, traits.layers[layer], tables)
        for layer, module in modules.items()
    }
    states = PromptStates(recorders, tables)
    first = recorders[min(recorders)]

    def record(number: int, *call: Any) -> None:
        if handler_of(first.module) is first:  # this thread's pass
            tables.record(number, *call)

    with model_lock(model), ExitStack() as stack:
        for recorder in recorders.values():
            hook = recorder.module.register_forward_pre_hook(recorder.before, with_kwargs=True)
            stack.callback(hook.remove)
        for number, rotary in enumerate(rotary_modules(model)):
            hook = rotary.register_forward_hook(partial(record, number), with_kwargs=True)
            stack.callback(hook.remove)
        stack.enter_context(config_views([recorder.module for recorder in recorders.values()]))
        handlers = {recorder.module: recorder for recorder in recorders.values()}
        stack.enter_context(handle_attention({**handlers_in_force(), **handlers}))
        yield states


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
        self.key = torch.empty(0, device="cpu")
        self.value = torch.empty(0, device="cpu")

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
