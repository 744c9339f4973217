"""Rotary frequencies that a model changes by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from rag_middle.attention.probe import rotary_modules
from rag_middle.attention.seam import uncompiled

__all__ = ["keep_frequencies"]


#: By rotary module: what blocks that are open found, the oldest first.
_found: WeakKeyDictionary[nn.Module, list[dict[str, Any]]] = WeakKeyDictionary()


@contextmanager
def keep_frequencies(model: nn.Module) -> Iterator[None]:
    """Undo what dynamic NTK leaves in a model: the frequencies of the longest input so far.

    Later prompts that are longer than the original length would be read with them. A block that
    ends before one that began within it, as in generators and tasks, leaves the undoing to that.
    """
    modules = map(uncompiled, rotary_modules(model))
    rotary = [m for m in modules if "dynamic" in str(getattr(m, "rope_type", ""))]
    before = [_frequencies(module) for module in rotary]
    for module, state in zip(rotary, before, strict=True):
        _found.setdefault(module, []).append(state)
    try:
        yield
    finally:
        try:
            _give_back(rotary, before)
        except BaseException:  # Ctrl-C
            _give_back(rotary, before)
            raise


def _give_back(rotary: list[nn.Module], before: list[dict[str, Any]]) -> None:
    for module, state in zip(rotary, before, strict=True):
        open_blocks = _found[module]
        place = next((i for i, found in enumerate(open_blocks) if found is state), None)
        if place is None:
            continue
        if place == len(open_blocks) - 1:
            _restore(module, state)
        else:  # what the next one found is of this one's making
            open_blocks[place + 1].clear()
            open_blocks[place + 1].update(state)
        del open_blocks[place]


def _restore(module: nn.Module, state: dict[str, Any]) -> None:
    for name in _frequencies(module).keys() - state.keys():
        delattr(module, name)  # lengths by layer type, which the first long input adds
    for name, value in state.items():
        setattr(module, name, value)


def _frequencies(rotary: nn.Module) -> dict[str, Any]:
    endings = ("inv_freq", "max_seq_len_cached", "attention_scaling")
    # Two names may share one tensor, as after a first long input.
    buffers = rotary.named_buffers(recurse=False, remove_duplicate=False)
    state = {**vars(rotary), **dict(buffers)}
    return {name: value for name, value in state.items() if name.endswith(endings)}
