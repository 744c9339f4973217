"""Leaving a model as it was, also where Ctrl-C comes just then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import nn

__all__ = ["Undoing", "take_off"]

#: Of a module; what says more about a hook first, as long as the hook itself is there to go by.
_HOOKS = (
    ("_forward_pre_hooks_with_kwargs", "_forward_pre_hooks"),
    ("_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_hooks"),
)


class Undoing:
    """Takes steps to be done as its block ends, the last one first.

    A step is noted before what it undoes is done, and one that Ctrl-C interrupts is done again: it
    has to bear both. `contextlib.ExitStack` would lose that step, or all that are left.
    """

    def __init__(self) -> None:
        self._steps: list[Callable[[], object]] = []

    def callback(self, step: Callable[..., object], *arguments: Any) -> None:
        """Note a step."""
        self._steps.append(partial(step, *arguments))

    def __enter__(self) -> Undoing:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._undo()
        except BaseException:
            self._undo()
            raise

    def _undo(self) -> None:
        while self._steps:
            self._steps[-1]()
            self._steps.pop()


def take_off(modules: Sequence[nn.Module], is_wanted: Callable[[Any], bool]) -> None:
    """Take hooks of forward passes off modules, whoever has their handles."""
    for module in modules:
        for kinds in _HOOKS:
            hooks = getattr(module, kinds[-1])
            for number in [number for number, hook in list(hooks.items()) if is_wanted(hook)]:
                for kind in kinds:
                    getattr(module, kind).pop(number, None)
