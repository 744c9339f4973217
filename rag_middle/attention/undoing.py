"""Leaving a model as it was, also where Ctrl-C comes just then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import nn

#: Attributes of a module. Those that say how a hook is called go first: after Ctrl-C between two,
#: the hook itself is still there to be looked for.
_HOOKS = (
    ("_forward_pre_hooks_with_kwargs", "_forward_pre_hooks"),
    ("_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_hooks"),
)


class Undoing:
    """Steps that are done as its block ends, the last one first.

    A step is noted before the change that it undoes, and done again where Ctrl-C interrupts it, so
    it has to work without the change, and twice. `contextlib.ExitStack` would lose that step, or
    all that are left.
    """

    def __init__(self) -> None:
        self._steps: list[Callable[[], object]] = []

    def callback(self, step: Callable[..., object], *arguments: Any) -> None:
        """Note a step: a function and its arguments."""
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


def remove_hooks(modules: Sequence[nn.Module], is_removed: Callable[[Any], bool]) -> None:
    """Remove hooks of forward passes from modules, without their handles.

    Args:
        modules: any.
        is_removed: says of a hook whether it goes.
    """
    for module in modules:
        for kinds in _HOOKS:
            hooks = getattr(module, kinds[-1])
            for number in [number for number, hook in list(hooks.items()) if is_removed(hook)]:
                for kind in kinds:
                    getattr(module, kind).pop(number, None)
