"""Queries, keys and values of an attention module for hidden states of our choosing.

The module's own forward is run up to the point where it would call attention: whatever it does
before (projections, fused or quantised, adapters, norms) is done by it, not imitated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from rag_middle.attention.seam import (
    AttentionCall,
    AttentionHandler,
    CacheTap,
    MethodHook,
    cache_argument,
    handle_attention,
)


class _Captured(BaseException):  # not an Exception: no library code may swallow it
    def __init__(self, call: AttentionCall) -> None:
        self.call = call


def _grab(call: AttentionCall) -> NoReturn:
    raise _Captured(call)


def capture(module: nn.Module, arguments: dict[str, Any], **replaced: Any) -> AttentionCall:
    """The attention call that `module` would make.

    Args:
        module: an attention module whose config is a `ConfigView`.
        arguments: its arguments by name, as the model passed them.
        replaced: arguments to change. The cache stays as it is: some modules ask it for the
            positions of their tokens, so its layer must not have those of this call yet.

    Returns:
        Query `[b, h, n, d]`, key `[b, g, n, d]` and value `[b, g, n, dv]` with the call's options.
    """
    name = cache_argument(module)
    named = arguments | replaced
    if name is not None and named.get(name) is not None:
        named[name] = CacheTap(named[name])
    try:
        with handle_attention({module: _grab}), torch.no_grad():
            # Not module(...): hooks of a request in progress must not see this call.
            module.forward(**named)
    except _Captured as captured:
        return captured.call
    raise RuntimeError(f"{type(module).__name__} returned without calling attention")


def constant(number: float) -> AttentionHandler:
    """Answers attention calls with one number everywhere, whatever is asked."""

    def attend(call: AttentionCall) -> tuple[Tensor, None]:
        b, h, n, _ = call.query.shape
        return call.value.new_full((b, n, h, call.value.shape[-1]), number), None

    return attend


def output_for_ones(module: nn.Module, arguments: dict[str, Any]) -> Tensor:
    """The output `[b, n, hidden]` of `module` where its attention gives ones, whatever it is asked.

    Args:
        module: the attention module.
        arguments: of its forward method, by name.
    """
    name = cache_argument(module)
    named = arguments if name is None else arguments | {name: None}
    with handle_attention({module: constant(1.0)}), torch.no_grad():
        output: Tensor | tuple[Tensor, ...] = module.forward(**named)
    return output if isinstance(output, Tensor) else output[0]


@contextmanager
def skip_modules(module: nn.Module, names: tuple[str, ...]) -> Iterator[None]:
    """Let these submodules hand their input through unchanged, in this thread's request."""
    skip = MethodHook(lambda _module, args, _output: args[0], module)
    with ExitStack() as hooks:
        for name in names:
            hooks.callback(module.get_submodule(name).register_forward_hook(skip).remove)
        yield


def random_normal(shape: Sequence[int], like: Tensor, seed: int) -> Tensor:
    """Standard normal numbers, the same ones each time."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float32, device="cpu").to(like)


def alike(one: Tensor, other: Tensor) -> bool:
    """Whether they are equal but for rounding."""
    one, other = one.float(), other.float()
    missing = (one - other).square().mean().sqrt()
    # 8-bit activations miss 0.02 of their size, bf16 0.005; unrelated numbers 1.4.
    return bool(missing <= 0.1 * other.square().mean().sqrt())
