"""Rotations that stay on a model: for whatever runs it, in any thread, until they are taken back.

A request's plan belongs to its block and thread (`rag_middle.attention.patch`). Rotary tables that
no prompt decides need neither: hooks give every call of a layer its tables.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from rag_middle.attention.change import Rotation
from rag_middle.attention.rotary import RotaryCall, RotaryTables, on_device, rotary_modules
from rag_middle.attention.seam import MethodHook, handler_of, keyword_arguments
from rag_middle.attention.traits import LayerTraits, ModelTraits
from rag_middle.errors import MethodConfigError, UnsupportedGenerationError


class InstalledRotations(MethodHook):
    """Rotations of layers, in force from now on.

    Args:
        model: that the modules belong to; nobody else may run or change it meanwhile.
        traits: of it.
        modules: its attention modules, by layer.
        rotations: by layer.

    Raises:
        MethodConfigError: the model has such rotations already.
    """

    def __init__(
        self,
        model: nn.Module,
        traits: ModelTraits,
        modules: Mapping[int, nn.Module],
        rotations: Mapping[int, Rotation],
    ) -> None:
        self._tables = _TablesOfThread(WeakTensorKeyDictionary())
        self._handles: list[RemovableHandle] = []
        self._modules: list[nn.Module] = []
        if any(map(is_installed, modules.values())):
            raise MethodConfigError(
                "This model has a method installed. Undo that first: a layer rotates in one way."
            )
        for number, rotary in enumerate(rotary_modules(model)):
            hook = rotary.register_forward_hook(partial(self._record, number), with_kwargs=True)
            self._handles.append(hook)
        for index, rotation in rotations.items():
            module = modules[index]
            before = _Before(self._tables, traits.layers[index], rotation)
            self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            self._modules.append(module)
            _installed[module] = self

    def _record(
        self,
        number: int,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any = None,
    ) -> None:
        if output is None:  # no keywords: another thread is removing the hook
            return
        calls = self._tables.calls
        calls.record(number, module, args, kwargs, output)
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self._tables.made[_tensor(output)] = calls.of(number)

    def remove(self) -> None:
        """Take everything back; again does nothing."""
        for handle in self._handles:
            handle.remove()
        for module in self._modules:
            _installed.pop(module, None)
        self._handles, self._modules = [], []


def _tensor(tables: Any) -> Tensor:
    tensor: Tensor = tables if isinstance(tables, Tensor) else tables[0]
    return tensor


class _TablesOfThread(threading.local):
    """The rotary calls of the forward pass under way: another thread may run another pass.

    Attributes:
        calls: of this thread's pass.
        made: calls of all passes, by the model's own tables. Backward passes run layers of earlier
            passes again (gradient checkpointing), on a GPU in a thread of autograd's.
    """

    # Called once by each thread, with the same `made`.
    def __init__(self, made: WeakTensorKeyDictionary) -> None:
        self.calls = RotaryTables()
        self.made = made

    def of(self, layer_type: str | int | None, tables: Any) -> RotaryCall | None:
        """The call that gave a layer of this type these tables.

        Raises:
            UnsupportedGenerationError: in a backward pass, where that is not known.
        """
        if torch.compiler.is_compiling() or torch._C._current_graph_task_id() == -1:
            return self.calls.of(layer_type)
        call: RotaryCall | None = self.made.get(_tensor(tables))
        if call is None:
            raise UnsupportedGenerationError(
                "This backward pass runs a layer again whose rotary tables were copied meanwhile, "
                "and the installed method cannot tell which they were. Train without gradient "
                "checkpointing, or with the whole model on one device."
            )
        return call


class _Before(MethodHook):
    """Forward pre-hook of an attention module: other rotary tables."""

    def __init__(self, tables: _TablesOfThread, layer: LayerTraits, rotation: Rotation) -> None:
        self._tables = tables
        self._layer_type = layer.layer_type
        self.installed = rotation  # counts in the model's fingerprint

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        # Without keywords where another thread is removing the hook.
        if kwargs is None or handler_of(module) is not None:  # the probe sets tables of its own
            return None
        arguments = keyword_arguments(module, args, kwargs)
        call = self._tables.of(self._layer_type, arguments["position_embeddings"])
        if call is None:
            return None
        tables = call.rotated(self.installed.scale, self.installed.base_factor)
        arguments["position_embeddings"] = on_device(tables, arguments["hidden_states"].device)
        return (), arguments


_installed: WeakKeyDictionary[nn.Module, InstalledRotations] = WeakKeyDictionary()


def is_installed(module: nn.Module) -> bool:
    """Whether an attention module has a rotation that stays."""
    return module in _installed
