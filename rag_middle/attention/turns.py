"""Taking turns on models, and what is remembered of them: both by the modules they are made of.

What a request changes for its time (hooks, configs, modes) hangs on modules, and models may share
these: an adapter's wrapper and its base, two heads on one decoder. So whoever takes a model takes
all of its modules, and whoever wants one of them waits.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, ref

from torch import nn

from rag_middle.errors import MethodConfigError

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


class _Block:
    """What a thread took at once: while the block is open, these modules are in use."""

    __slots__ = ("ended", "modules", "process", "thread")

    def __init__(self, modules: list[nn.Module]) -> None:
        self.process, self.thread = os.getpid(), threading.get_ident()
        self.modules = {id(module): module for module in modules}  # alive, so ids stay theirs
        self.ended = threading.Lock()  # for others to wait on
        self.ended.acquire()

    def meets(self, other: _Block) -> bool:
        return not self.modules.keys().isdisjoint(other.modules.keys())

    def end(self) -> None:
        if self in _open:
            _open.discard(self)
            self.ended.release()


#: To put a block in or take it out is one step of the interpreter, which no Ctrl-C divides. Only
#: here does it say who has what.
_open: set[_Block] = set()
#: For looking whether modules are free and taking them. Not a condition: its methods are Python,
#: where Ctrl-C may come between taking a lock and knowing so; a lock's own ``with`` leaves no gap.
_looking = threading.Lock()
_LONGEST = 1.0  # seconds; who was to be woken looks again after this time


if hasattr(os, "register_at_fork"):  # the thread that was looking is not there in the new process
    os.register_at_fork(after_in_child=_looking._at_fork_reinit)  # type: ignore[attr-defined]


class ModelLock:
    """A lock on all modules of a model; one thread may have them any number of times.

    All are taken in one step, when the last of them is free: who waits holds nothing new. So
    threads that want one model at a time never wait for each other in a circle, whatever the
    models share. A thread that has one model and asks for another may, as with any two locks: if
    another thread does so the other way round, both wait for ever.

    Ctrl-C leaves nothing taken, whenever it comes. Where Python notices it just outside the block,
    as it begins or ends, the model is given back with the last reference to the lock: at the latest
    when the traceback goes.

    Args:
        model: as it is made when the lock is taken.

    Raises:
        MethodConfigError: this process was forked while another thread had the model, and no thread
            of this one will ever give it back.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._blocks: list[_Block] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the model, as `threading.RLock.acquire` does."""
        until = time.monotonic() + timeout if blocking and timeout >= 0 else math.inf
        block = _Block(modules_of(self._model))
        try:
            while (other := self._take(block)) is not None:
                left = until - time.monotonic() if blocking else 0
                if left <= 0:
                    return False
                if other.ended.acquire(timeout=min(left, _LONGEST)):
                    other.ended.release()  # for the next who waits
            return True
        except BaseException:
            block.end()
            raise

    def _take(self, block: _Block) -> _Block | None:
        """Open the block, or say which one of another thread is in its way."""
        with _looking:
            for other in _open.copy():
                if other.thread != block.thread and other.meets(block):
                    if other.process != block.process:
                        raise MethodConfigError(
                            "This process was forked while another thread had this model, which "
                            "is here as that thread left it. Fork while no request runs, or start "
                            "processes with multiprocessing's 'spawn' and load the model there."
                        )
                    return other
            self._blocks.append(block)  # first: from here on it can be given back
            _open.add(block)
            return None

    def release(self) -> None:
        """Give back what was taken last; nothing, where nothing was."""
        while self._blocks:
            was_open = self._blocks[-1] in _open
            self._blocks[-1].end()
            self._blocks.pop()
            if was_open:  # and not one that Ctrl-C kept from opening
                break

    def is_owned(self) -> bool:
        """Whether this thread has the model, or a part of it."""
        wanted = _Block(modules_of(self._model))
        return any(b.thread == wanted.thread and b.meets(wanted) for b in _open.copy())

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        for block in self._blocks:
            block.end()


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
