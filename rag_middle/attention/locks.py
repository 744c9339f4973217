"""The lock of a model, and what is remembered of it: both by the modules it is made of."""

from __future__ import annotations

import threading
from _thread import RLock
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, ref

from torch import nn
from transformers import PreTrainedModel

_POLL_SECONDS = 0.05

T = TypeVar("T")


def modules_of(model: nn.Module) -> list[nn.Module]:
    """Each module of the model once, itself first; faster than ``modules()``."""
    seen, modules, ahead = {id(model)}, [], [model]
    while ahead:
        module = ahead.pop()
        modules.append(module)
        for child in module._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                ahead.append(child)
    return modules


#: By the decoder, which a wrapper of adapters and other heads have in common.
_locks: WeakKeyDictionary[nn.Module, RLock] = WeakKeyDictionary()
_making_locks = threading.Lock()


def model_lock(model: nn.Module) -> RLock:
    """The lock with which requests take turns on this model; one thread may take it repeatedly.

    An adapter's wrapper and its base, or two heads on one decoder, have the same lock: what a
    request changes for its time (hooks, configs, modes) hangs on modules that they share.
    """
    networks = (module for module in modules_of(model) if isinstance(module, PreTrainedModel))
    outermost = next(networks, None)
    # Of one that reads pictures too, the part that reads text.
    decoder = model if outermost is None else outermost.get_decoder()
    with _making_locks:
        return _locks.setdefault(decoder, threading.RLock())


@contextmanager
def locked(model: nn.Module, cancelled: Callable[[], bool] = lambda: False) -> Iterator[bool]:
    """Wait for the model; inside the block it belongs to this thread.

    Yields:
        True, or False where `cancelled` became true before the model was free.
    """
    lock = model_lock(model)
    while not (taken := lock.acquire(timeout=_POLL_SECONDS)) and not cancelled():
        pass
    try:
        yield taken
    finally:
        if taken:
            lock.release()


class OfModel(Generic[T]):
    """Something found out about models, forgotten with them and when a module is replaced."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[nn.Module, tuple[list[tuple[Any, type]], T]] = (
            WeakKeyDictionary()
        )

    def get(self, model: nn.Module) -> T | None:
        """What is known of the model as it is made now."""
        remembered = self._known.get(model)
        if remembered is None:
            return None
        modules = modules_of(model)
        same = len(modules) == len(remembered[0]) and all(
            seen() is module and kind is type(module)
            for module, (seen, kind) in zip(modules, remembered[0], strict=True)
        )
        return remembered[1] if same else None

    def put(self, model: nn.Module, value: T) -> T:
        """Remember it; returns it."""
        parts = [(ref(module), type(module)) for module in modules_of(model)]
        self._known[model] = (parts, value)
        return value
