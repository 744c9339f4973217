"""Taking turns on models, and what is remembered of them: both by the modules they are made of.

What a request changes for its time (hooks, configs, modes) hangs on modules, and models may share
these: an adapter's wrapper and its base, two heads on one decoder. So whoever takes a model takes
all of its modules, and whoever wants one of them waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, ref

from torch import nn

__all__ = ["ModelLock", "OfModel", "modules_of", "turn"]

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


class _Hold:
    """Modules that a thread took at once, and the blocks that need them."""

    __slots__ = ("blocks", "modules", "thread")

    def __init__(self, thread: int, modules: list[nn.Module]) -> None:
        self.thread = thread
        self.modules = modules  # kept alive: the table goes by their ids
        self.blocks: set[object] = set()


#: Modules in use, by id. All of it changes under the condition.
_holds: dict[int, _Hold] = {}
_changed = threading.Condition()


class ModelLock:
    """A lock on all modules of a model; one thread may have them any number of times.

    All are taken in one step, when the last of them is free: who waits holds nothing new. So
    threads that want one model at a time never wait for each other in a circle, whatever the
    models share. A thread that has one model and asks for another may, as with any two locks: if
    another thread does so the other way round, both wait for ever.

    Args:
        model: as it is made when the lock is taken.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._taken: list[tuple[object, list[_Hold]]] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the model, as `threading.RLock.acquire` does."""
        longest = None if blocking and timeout < 0 else max(0.0, timeout)
        before = len(self._taken)
        with _changed:
            try:
                return _changed.wait_for(self._take, longest)
            except BaseException:  # Ctrl-C in between
                if self._taken[before:]:
                    self.release()
                raise

    def release(self) -> None:
        """Give back what was taken last; nothing, where nothing was."""
        with _changed:
            try:
                if self._taken:
                    block, holds = self._taken.pop()
                    for hold in holds:
                        hold.blocks.discard(block)
                        if not hold.blocks:
                            for module in hold.modules:
                                if _holds.get(id(module)) is hold:
                                    del _holds[id(module)]
            finally:
                _changed.notify_all()

    def is_owned(self) -> bool:
        """Whether this thread has the model, or a part of it."""
        me = threading.get_ident()
        with _changed:
            return any(hold.thread == me for hold in _in_use(modules_of(self._model)))

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _take(self) -> bool:
        """Take all modules, or none where another thread has one."""
        me, modules = threading.get_ident(), modules_of(self._model)
        holds = _in_use(modules)
        if any(hold.thread != me for hold in holds):
            return False
        covered = {id(module) for hold in holds for module in hold.modules}
        new = _Hold(me, [module for module in modules if id(module) not in covered])
        block = object()
        self._taken.append((block, [*holds, new]))  # first: from here on it can be given back
        for hold in (*holds, new):
            hold.blocks.add(block)
        _holds.update((id(module), new) for module in new.modules)
        return True


@contextmanager
def turn(model: nn.Module, cancelled: Callable[[], bool] = lambda: False) -> Iterator[bool]:
    """Wait for the model; inside the block it belongs to this thread.

    Yields:
        True, or False where `cancelled` became true before the model was free.
    """
    lock = ModelLock(model)
    try:
        while not (taken := lock.acquire(timeout=_POLL_SECONDS)) and not cancelled():
            pass
        yield taken
    finally:
        lock.release()


def _in_use(modules: list[nn.Module]) -> list[_Hold]:
    """The holds on any of them. One without blocks was being given back when Ctrl-C came."""
    holds = {id(hold): hold for module in modules if (hold := _holds.get(id(module)))}
    return [hold for hold in holds.values() if hold.blocks]


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
