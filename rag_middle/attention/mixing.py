"""Whether tokens of a decoder layer reach each other by other means than its softmax attention.

Some layers have a state-space mixer or a convolution beside their attention, which reads the prompt
from left to right whatever the attention is told. Both are found by trying: other hidden states for
all tokens but the last must change nothing of the last one's queries, keys and values, and, where
attention gives zeros, nothing that the layer's parts hand on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rag_middle.attention.capturing import alike, capture, constant, random_normal
from rag_middle.attention.seam import (
    MethodHook,
    cache_argument,
    handle_attention,
    keyword_arguments,
    uncompiled,
)


def decoder_layers(model: nn.Module, modules: Sequence[nn.Module]) -> dict[nn.Module, list[Any]]:
    """The items of module lists that hold attention modules, each with those that it holds."""
    attention = set(modules)
    by_layer: dict[nn.Module, list[Any]] = {}
    for part in model.modules():
        if isinstance(part, nn.ModuleList):
            for layer in map(uncompiled, part):  # what is called has the hooks and the signature
                if held := [module for module in layer.modules() if module in attention]:
                    by_layer[layer] = held
    return by_layer


def mixes_in_layer(
    layer: nn.Module, modules: Sequence[nn.Module], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bool:
    """Whether tokens reach the last one where the layer's attention gives zeros.

    Args:
        layer: a decoder layer.
        modules: its attention modules, whose configs are `ConfigView`.
        args: its positional arguments, the hidden states `[..., n, hidden]` first.
        kwargs: its other arguments.
    """
    arguments = keyword_arguments(layer, args, dict(kwargs))
    name = next((n for n, value in arguments.items() if isinstance(value, Tensor)), None)
    if name is None or not arguments[name].is_floating_point():
        return False
    if (cache := cache_argument(layer)) is not None:
        arguments[cache] = None
    # Also what its parts hand on: of the layer's output, a mixer may be a small share.
    seen: dict[nn.Module, list[Tensor]] = {}
    tokens = arguments[name].shape[:-1]

    def keep(part: nn.Module, _args: Any, output: Any) -> None:
        output = output[0] if isinstance(output, tuple) and output else output
        if isinstance(output, Tensor) and output.shape[:-1] == tokens:
            seen.setdefault(part, []).append(output[..., -1, :].clone())

    hook = MethodHook(keep, modules[0])
    hooks = [part.register_forward_hook(hook) for part in layer.modules() if part is not layer]
    try:
        with handle_attention(dict.fromkeys(modules, constant(0.0))), torch.no_grad():
            for hidden in _two_pasts(arguments[name]):
                # Not layer(...): hooks of whoever watches the model must not see this call.
                keep(layer, (), layer.forward(**arguments | {name: hidden}))
    finally:
        for handle in hooks:
            handle.remove()
    for outputs in seen.values():
        half = len(outputs) // 2
        # An expert that one of them asks once more is no part of every token's way.
        if len(outputs) == 2 * half and not all(map(alike, outputs[:half], outputs[half:])):
            return True
    return False


def mixes_in_projections(module: nn.Module, arguments: dict[str, Any]) -> bool:
    """Whether queries, keys or values of the last token depend on the tokens before it."""
    first, second = _two_pasts(arguments["hidden_states"])
    one, other = (capture(module, arguments, hidden_states=hidden) for hidden in (first, second))
    pairs = ((one.query, other.query), (one.key, other.key), (one.value, other.value))
    return not all(alike(a[..., -1, :], b[..., -1, :]) for a, b in pairs)


def _two_pasts(hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Random hidden states of the usual size, twice; only the last token's are the same."""
    size = hidden.float().square().mean().sqrt().clamp(min=1e-6).to(hidden.dtype)
    first, second = (size * random_normal(hidden.shape, hidden, seed) for seed in (6, 7))
    second[..., -1, :] = first[..., -1, :]
    return first, second
