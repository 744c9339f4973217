"""Where this package meets a transformers attention module.

Three reversible things are done to a module, none of them to its class or to the library:

* a forward pre-hook sees (and may replace) the arguments of the call;
* its ``config`` is replaced by a view that names our attention function while a request of this
  thread runs, and says what the real config says to everyone else;
* a cache handed to it is replaced by a tap that records the new keys and values, so that what
  enters the real cache can be decided where the queries are known too.

The attention function itself is registered once under a name of its own with transformers'
`AttentionInterface`. Masks are still made by the model for its own backend, because the model's
config is never touched.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, GenerationMixin
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

INTERFACE_NAME = "rag_middle"

#: Names under which modules of transformers take their cache, ``cache`` since 5.24.
_CACHE_ARGUMENTS = ("cache", "past_key_values", "layer_past", "past_key_value")


@dataclass(slots=True, eq=False)
class AttentionCall:
    """Arguments of one call of the attention function.

    Attributes:
        module: the attention module.
        query: ``[b, h, n, d]``.
        key: ``[b, g, n, d]``.
        value: ``[b, g, n, dv]``.
        mask: what the model made for its backend: ``None``, ``[b, 1, n, k]`` or ``[b, k]``.
        options: keyword arguments of the call (``scaling``, ``softcap``, ``s_aux``, ...).
    """

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    options: dict[str, Any]

    def first_tokens(self, count: int) -> AttentionCall:
        """The call of a prompt, as if it ended after its first `count` columns."""
        query, key, value = (x[:, :, :count] for x in (self.query, self.key, self.value))
        mask = self.mask
        if mask is not None:
            mask = mask[:, :, :count, :count] if mask.ndim == 4 else mask[:, :count]
        return AttentionCall(self.module, query, key, value, mask, self.options)


#: Answers an attention call: output ``[b, n, h, dv]`` and, where the backend gives them, weights.
AttentionHandler = Callable[[AttentionCall], tuple[Tensor, Tensor | None]]


class _HandlersOfThread(threading.local):
    """What answers attention calls in this thread, by module, and all handlers of open blocks."""

    def __init__(self) -> None:
        self.by_module: dict[nn.Module, AttentionHandler] = {}
        self.of_open_blocks: set[AttentionHandler] = set()


_here = _HandlersOfThread()


@contextmanager
def handle_attention(handlers: Mapping[nn.Module, AttentionHandler | None]) -> Iterator[None]:
    """Route the attention calls of these modules, in this thread, to their handlers.

    A module whose handler is None attends as it does outside of requests. Other modules are not
    touched: blocks of several models hold at the same time, in whatever order they end.
    """
    by_module, of_open_blocks = _here.by_module, _here.of_open_blocks
    before = {module: by_module.get(module) for module in handlers}
    own = {handler for handler in handlers.values() if handler is not None}

    def put(module: nn.Module, handler: AttentionHandler | None) -> None:
        if handler is None:
            by_module.pop(module, None)
        else:
            by_module[module] = handler

    of_open_blocks |= own
    for module, handler in handlers.items():
        put(module, handler)
    try:
        yield
    finally:
        of_open_blocks -= own
        for module, handler in before.items():
            if by_module.get(module) is handlers[module]:  # else a block begun later has it
                put(module, handler if handler in of_open_blocks else None)


def handler_of(module: nn.Module) -> AttentionHandler | None:
    """What answers this module's attention calls in this thread, ``None`` outside a request."""
    return _here.by_module.get(module)


class MethodHook:
    """A hook that acts only in the thread whose request it belongs to.

    Args:
        hook: of PyTorch.
        owner: a module whose attention calls the request answers; ``None`` for the one hooked.
    """

    def __init__(self, hook: Callable[..., Any], owner: nn.Module | None = None) -> None:
        self._hook = hook
        self._owner = owner

    def __call__(self, module: nn.Module, *arguments: Any) -> Any:
        if handler_of(self._owner or module) is None:
            return None
        return self._hook(module, *arguments)


def _attention_function(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    handler = handler_of(module)
    assert handler is not None  # the name is only visible while a handler is installed
    return handler(AttentionCall(module, query, key, value, attention_mask, options))


AttentionInterface.register(INTERFACE_NAME, _attention_function)


def base_attention(
    call: AttentionCall, *, backend: str | None = None
) -> tuple[Tensor, Tensor | None]:
    """Run the call as the model would have run it, on its own backend.

    Args:
        call: arguments of the attention function.
        backend: run it on this one instead.

    Returns:
        The output ``[b, n, h, dv]`` and the attention weights where the backend gives them.
    """
    module = call.module
    file = sys.modules[type(module).__module__]
    # Model files keep their own eager function: it knows about soft-capping and sinks.
    eager = getattr(file, "eager_attention_forward", None)
    interface: Any = getattr(file, "ALL_ATTENTION_FUNCTIONS", ALL_ATTENTION_FUNCTIONS)
    function = interface.get_interface(backend or backend_name(module), eager)
    # Backends ask the module's config for the implementation's name: show them the real one. Not
    # `handle_attention`: a generator would cost a tenth of what a method may add to a token here.
    in_force = _here.by_module
    handler = in_force.pop(module, None)
    try:
        output, weights = function(
            module, call.query, call.key, call.value, call.mask, **call.options
        )
    finally:
        if handler is not None:
            in_force[module] = handler
    return output, weights


def backend_name(module: nn.Module) -> str:
    """The attention implementation that the model itself would use in this module."""
    config: Any = module.config
    if isinstance(config, ConfigView):
        config = config.wrapped
    return str(config._attn_implementation)


class ConfigView:
    """A module's config that names our attention function while this thread runs a request."""

    def __init__(self, wrapped: Any, module: nn.Module) -> None:
        object.__setattr__(self, "wrapped", wrapped)
        object.__setattr__(self, "_module", module)

    @property
    def _attn_implementation(self) -> str | None:
        if handler_of(self._module) is not None:
            return INTERFACE_NAME
        name: str | None = self.wrapped._attn_implementation
        return name

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "wrapped"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.wrapped, name, value)


@contextmanager
def config_views(modules: list[nn.Module]) -> Iterator[None]:
    """Give the modules a `ConfigView` for the time being."""
    configs = [(module, module.config) for module in modules]
    try:
        for module, config in configs:
            module.config = ConfigView(config, module)  # type: ignore[assignment]
        yield
    finally:
        for module, config in configs:
            module.config = config


class CacheTap:
    """Stands in for a cache during one module call: records the update instead of doing it."""

    def __init__(self, cache: Any | None) -> None:
        self.cache = cache
        self._pending: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    def update(
        self, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Remember how the module updates its cache; hand it back what it brought."""
        self._pending = (args, kwargs)
        return key, value

    def get_seq_length(self, layer_idx: int = 0) -> Any:
        """Tokens before those of the call, also where it reads tokens once more."""
        cache: Any = self.cache
        column = getattr(cache, "column", None)
        return cache.get_seq_length(layer_idx) if column is None else column

    def store(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Do the recorded update with these tensors.

        Returns:
            All keys and values to attend to: the cache's, or the given ones without a cache.
        """
        if self.cache is None or self._pending is None:
            return key, value
        args, kwargs = self._pending
        self._pending = None
        keys, values = self.cache.update(key, value, *args, **kwargs)
        return keys, values

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "cache"), name)


@cache
def parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of a method's parameters, in order, without ``self``."""
    return tuple(inspect.signature(function).parameters)[1:]


def keyword_arguments(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """All arguments of a module call by name, as the class declares them."""
    if not args:
        return dict(kwargs)
    return dict(zip(parameters(type(module).forward), args, strict=False)) | kwargs


def uncompiled(module: nn.Module) -> nn.Module:
    """The module that ``torch.compile(module)`` was made of; `module` where it is none."""
    own = type(module).__name__ == "OptimizedModule"
    return module._orig_mod if own else module  # type: ignore[return-value]


def cache_argument(module: nn.Module) -> str | None:
    """The name under which this module takes its cache, ``None`` if it takes none."""
    return _cache_argument(type(module).forward)


@cache
def _cache_argument(forward: Callable[..., Any]) -> str | None:
    declared = parameters(forward)
    return next((name for name in _CACHE_ARGUMENTS if name in declared), None)


_of_models = parameters(GenerationMixin.prepare_inputs_for_generation)
#: The name under which models and their `generate` take the cache, and under which they return it.
MODEL_CACHE = next(name for name in _CACHE_ARGUMENTS if name in _of_models)


def cache_name(arguments: Mapping[str, Any]) -> str:
    """The name under which a call of a model hands over its cache: earlier ones are taken too."""
    return next((name for name in _CACHE_ARGUMENTS if name in arguments), MODEL_CACHE)


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Without dropout; afterwards each module is back in the mode it was in."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
