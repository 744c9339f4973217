"""Rotary frequencies that a model changes by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from rag_middle.attention.probe import rotary_modules
from rag_middle.attention.seam import uncompiled

#: By rotary module: the frequencies that each open block began with, the oldest block first.
_of_open_blocks: WeakKeyDictionary[nn.Module, list[dict[str, Any]]] = WeakKeyDictionary()


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
        _of_open_blocks.setdefault(module, []).append(state)
    try:
        yield
    finally:
        for module, state in zip(rotary, before, strict=True):
            states = _of_open_blocks[module]
            index = next(i for i, other in enumerate(states) if other is state)
            if index == len(states) - 1:
                _restore(module, state)
            else:  # the next block began with what the model wrote in this one
                states[index + 1].clear()
                states[index + 1].update(state)
            del states[index]


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
