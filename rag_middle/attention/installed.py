"""Rotations that stay on a model: for whatever runs it, in any thread, until they are taken back.

A request's plan belongs to its block and thread (`rag_middle.attention.patch`). Rotary tables that
no prompt decides need neither: hooks give every call of a layer its tables.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any
from weakref import WeakSet

import torch
from torch import nn

from rag_middle.attention.change import Rotation
from rag_middle.attention.rotary import RotaryTables, on_device, rotary_modules
from rag_middle.attention.seam import MethodHook, handler_of, keyword_arguments
from rag_middle.attention.traits import LayerTraits, ModelTraits
from rag_middle.errors import MethodConfigError, UnsupportedGenerationError

_installed: WeakSet[nn.Module] = WeakSet()


def is_installed(module: nn.Module) -> bool:
    """Whether an attention module has a rotation that stays."""
    return module in _installed


def install_rotations(
    model: nn.Module,
    traits: ModelTraits,
    modules: Mapping[int, nn.Module],
    rotations: Mapping[int, Rotation],
) -> ExitStack:
    """Put rotations of layers in force from now on; closing what is returned takes them back.

    Args:
        model: that the modules belong to; nobody else may run or change it meanwhile.
        traits: of it.
        modules: its attention modules, by layer.
        rotations: by layer.

    Raises:
        MethodConfigError: the model has such rotations already.
    """
    if any(map(is_installed, modules.values())):
        raise MethodConfigError(
            "This model has a method installed. Undo that first: a layer rotates in one way."
        )
    pass_of_thread, stack = _PassOfThread(), ExitStack()
    for number, rotary in enumerate(rotary_modules(model)):
        record = _Record(pass_of_thread, number)
        stack.callback(rotary.register_forward_hook(record, with_kwargs=True).remove)
    for index, rotation in rotations.items():
        module = modules[index]
        before = _Before(pass_of_thread, traits.layers[index], rotation)
        stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
        stack.callback(_installed.discard, module)
        _installed.add(module)
    return stack


class _PassOfThread(threading.local):
    """The rotary calls of the forward pass under way: another thread may run another pass."""

    def __init__(self) -> None:
        self.tables = RotaryTables()


class _Record(MethodHook):
    """Forward hook of a rotary module: notes what it was called with."""

    def __init__(self, pass_of_thread: _PassOfThread, number: int) -> None:
        self._pass = pass_of_thread
        self._number = number

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        self._pass.tables.record(self._number, module, args, kwargs, output)


class _Before(MethodHook):
    """Forward pre-hook of an attention module: other rotary tables."""

    def __init__(
        self, pass_of_thread: _PassOfThread, layer: LayerTraits, rotation: Rotation
    ) -> None:
        self._pass = pass_of_thread
        self._layer_type = layer.layer_type
        self.installed = rotation  # counts in the model's fingerprint

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if handler_of(module) is not None:  # the probe sets tables of its own
            return None
        if not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1:
            raise UnsupportedGenerationError(
                "Gradient checkpointing runs layers again in the backward pass, where an installed "
                "method cannot tell their rotary tables. Train without it, or without the method."
            )
        arguments = keyword_arguments(module, args, kwargs)
        call = self._pass.tables.of(self._layer_type)
        if call is None:
            return None
        tables = call.rotated(self.installed.scale, self.installed.base_factor)
        arguments["position_embeddings"] = on_device(tables, arguments["hidden_states"].device)
        return (), arguments
