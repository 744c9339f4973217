"""What tells models apart: digests of their weights, and of all that decides what they compute.

* `weights_sample`: some values of every parameter, the same in every number format;
* `weights_sha256`: every value of every parameter;
* `config_sha256`: the config, as far as it decides what is computed;
* `adapters_sha256`: which adapters act, and how strongly;
* `fingerprint`: what the next forward pass depends on, adapters and settings included.
"""

from __future__ import annotations

import functools
import hashlib
import json
import threading
import types
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.utils.weak import WeakTensorKeyDictionary
from transformers import GenerationMixin, PreTrainedModel

__all__ = [
    "adapters_sha256",
    "config_sha256",
    "fingerprint",
    "settings_sha256",
    "weights_sample",
    "weights_sha256",
]

_SAMPLED = 64  # values of every tensor
_WIDTH = 1024  # 8-byte words per row that a checksum sums up
_DEPTH = 12  # objects inside objects
_GOLDEN = 0.6180339887498949

#: What a module has without saying anything about its forward pass, or is looked at by itself.
#: Modes (``training``) are no part either: requests run without dropout, whatever they say.
_OWN = frozenset({*vars(nn.Module()), "generation_config", "name_or_path", "warnings_issued"})
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_NAMED = (torch.dtype, torch.device, torch.Size, Enum, type)
#: Functions of these say how models are loaded, saved and sampled from, not what they compute.
_BASES = frozenset({object, *PreTrainedModel.__mro__, *GenerationMixin.__mro__})
#: What a compiler keeps of a model changes with use, and not what the model computes.
_COMPILERS = ("torch._dynamo", "torch._inductor", "torch._functorch")
#: Where types written in C say that an object keeps things; read as slots, these are addresses.
_PLACES = ("__dictoffset__", "__vectorcalloffset__", "__weaklistoffset__")

#: What a config says besides what the model computes: number formats, what calls return, names.
_BOOKKEEPING = frozenset(
    "architectures auto_map dtype torch_dtype quantization_config transformers_version "
    "use_cache return_dict output_attentions output_hidden_states torchscript initializer_range "
    "id2label label2id problem_type task_specific_params finetuning_task tokenizer_class".split()
)
#: Where PEFT keeps which adapters act. Its modules have one of the marks.
_MARKS = ("active_adapter", "_active_adapter")
_SWITCHES = (*_MARKS, "_disable_adapters", "_adapters_disabled", "merged_adapters", "scaling")


def weights_sample(model: nn.Module) -> str | None:
    """A digest of some values of every parameter, rounded to bfloat16; quick to compute.

    Returns:
        The same for a model in another number format; ``None`` where weights are offloaded.
    """
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if parameter.device.type == "meta":
            return None
        values = parameter.detach().flatten()
        every = max(1, len(values) // _SAMPLED)
        digest.update(f"{name}{tuple(parameter.shape)}".encode())
        digest.update(_bytes(values[::every][:_SAMPLED].float().bfloat16()))
    return digest.hexdigest()


def weights_sha256(model: nn.Module) -> str | None:
    """A digest of all values of every parameter, in the number format that it has.

    Returns:
        ``None`` where weights are offloaded.
    """
    digest = hashlib.sha256()
    for name, values in model.named_parameters():
        if values.device.type == "meta":
            return None
        digest.update(f"{name}{tuple(values.shape)}{values.dtype}".encode())
        digest.update(_bytes(values))
    return digest.hexdigest()


def config_sha256(config: Any) -> str:
    """A digest of what a config says of the computation.

    Returns:
        The same wherever the model was loaded from, once it is saved and loaded again, and in
        another number format. Defaults do not count, as releases of transformers add some.
    """
    return settings_sha256(_deciding(config.to_dict(), _defaults(config.__class__)))


def adapters_sha256(model: nn.Module) -> str | None:
    """A digest of which of a model's adapters (PEFT) are active, switched off, merged or scaled.

    Their weights are parameters of the model, whichever of them act.

    Returns:
        ``None`` for a model without adapters.
    """
    switches = {
        name: {switch: _listed(getattr(module, switch, None)) for switch in _SWITCHES}
        for name, module in model.named_modules()
        # Not by `getattr`, which is slow where a module lacks the attribute, and most do.
        if hasattr(type(module), "_active_adapter") or not vars(module).keys().isdisjoint(_MARKS)
    }
    return settings_sha256(switches) if switches else None


def _listed(value: object) -> object:
    """A lone name as a list of it: PEFT keeps either, for the same adapter."""
    return [value] if isinstance(value, str) else value


def settings_sha256(settings: object) -> str:
    """A digest of plain data. Numbers that are equal are the same, and lists and tuples."""
    return _digest([json.dumps(_plain(settings), sort_keys=True)])


@functools.cache
def _defaults(kind: type) -> Any:
    with suppress(Exception):  # a class that comes with a model may have none
        return kind().to_dict()
    return {}


def _deciding(settings: Any, defaults: Any) -> Any:
    """Settings of a config without bookkeeping and what is left at its default."""
    if not isinstance(settings, Mapping):
        return settings
    usual = defaults if isinstance(defaults, Mapping) else {}
    return {
        name: _deciding(value, usual.get(name))
        for name, value in settings.items()
        if name not in _BOOKKEEPING
        and not str(name).startswith("_")
        # Special tokens are the tokenizer's and the generation config's business.
        and not str(name).endswith("token_id")
        and (name not in usual or value != usual[name])
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(_plain(item), sort_keys=True) for item in value)
    if isinstance(value, Tensor):
        return _plain(value.tolist())
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, bool | int | float | str | None) else _name(type(value))


def fingerprint(model: nn.Module) -> str:
    """A digest of what the model's next forward pass depends on.

    That is its config; its modules' classes, with the code of their functions and of those that
    these name in the same file; the modules' attributes (which adapters are active, merged or
    scaled), whoever put them there; forward hooks, those of all modules too; and every tensor that
    a module has, registered or not. Functions go by their code, their defaults and what they close
    over, so two of one name differ. The hooks of this package's own requests do not count; a method
    that was installed does.

    Each tensor goes through a checksum of all its values, once: it is computed again when the
    tensor's version counter or address says so, and when one of 64 values, spread over the tensor
    and read every time, is another. So what is missed is an edit that goes round the version
    counter (through ``.data`` or NumPy) and changes none of the 64; functions further away than
    those named above; attributes of a container of a class of one's own (only what it contains is
    seen); and whatever stands in other global variables, an extension keeps outside Python, or a
    disk keeps of offloaded weights.

    Args:
        model: not changed, and not waited for. While another thread's request runs on a model
            with offloaded weights, the digest may be one of its own.
    """
    with _lock:
        described = _Description()
        everywhere = (torch_module._global_forward_pre_hooks, torch_module._global_forward_hooks)
        text = described.of([list(hooks.values()) for hooks in everywhere]) + described.of(model)
        contents = _contents(described.tensors)
    return _digest([text, *contents])


_lock = threading.Lock()
#: Of tensors: version, address, sample and checksum.
_seen: Any = WeakTensorKeyDictionary()
#: Of modules with state of their own: their attributes then, and a digest of the state.
_saved: WeakKeyDictionary[nn.Module, tuple[list[Any], str]] = WeakKeyDictionary()
#: Of code: a digest.
_codes: WeakKeyDictionary[types.CodeType, str] = WeakKeyDictionary()


class _Description:
    """Text that says what objects are made of, the same in every process; tensors by number."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self._numbers: dict[int, int] = {}
        self._kept: list[object] = []  # while it lasts, so that no id is given anew
        self._slots: dict[type, list[Any]] = {}  # of the classes described
        self._files: set[str] = set()  # with classes of modules

    def of(self, value: Any, depth: int = 0) -> str:
        """What there is to say of a value."""
        kind = type(value)
        if kind in _PLAIN:
            return repr(value)
        number = self._numbers.get(id(value))
        if number is not None:
            return f"@{number}"  # described already: tied weights, shared modules, circles
        self._numbers[id(value)] = len(self._numbers)
        self._kept.append(value)
        if isinstance(value, Tensor):
            return self._tensor(value, depth)
        if isinstance(value, nn.Module):
            return self._module(value, depth)
        if isinstance(value, _NAMED):
            return str(value)
        if isinstance(value, types.ModuleType):
            return value.__name__
        if isinstance(value, types.FunctionType):
            if _is_compilers(value) and hasattr(value, "__wrapped__"):
                return self.of(value.__wrapped__, depth)  # computes the same
            return self._function(value, depth)
        if depth > _DEPTH or kind.__module__.startswith(_COMPILERS):
            return _name(kind)
        if isinstance(value, types.BuiltinFunctionType):
            return f"{value.__qualname__}{self.of(value.__self__, depth + 1)}"
        if isinstance(value, dict | types.MappingProxyType):
            pairs = [
                f"{self.of(key, depth + 1)}:{self.of(item, depth + 1)}"
                for key, item in list(value.items())
            ]
            return f"{{{','.join(pairs)}}}"
        if isinstance(value, list | tuple | deque):
            return f"[{','.join([self.of(item, depth + 1) for item in value])}]"
        if isinstance(value, set | frozenset):
            return f"{{{','.join(sorted(self.of(item, depth + 1) for item in value))}}}"
        if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            return f"{value.dtype}{value.shape}{_digest([value.tobytes()])}"
        if callable(getattr(value, "to_dict", None)):  # a config
            settings = dict(value.to_dict())
            settings.pop("_name_or_path", None)  # where it was loaded from
            return f"{self.of(settings, depth)}{getattr(value, '_attn_implementation', '')}"
        text, attributes = self._class(kind), self._attributes(value)
        if not attributes and not hasattr(value, "__dict__"):  # made of no Python: as when copied
            with suppress(Exception):
                attributes = {"": value.__reduce_ex__(2)}
        return f"{text}{self.of(attributes, depth + 1)}"

    def _function(self, function: types.FunctionType, depth: int) -> str:
        """Its name, its code, and what the code works with besides its arguments."""
        name, code = f"{function.__module__}.{function.__qualname__}", function.__code__
        if depth > _DEPTH:
            return name
        attributes = {
            name: value  # libraries keep what they let a compiler make at the first call
            for name, value in _without_marks(vars(function)).items()
            if not _is_compilers(value)
        }
        beside: list[Any] = [function.__defaults__, function.__kwdefaults__, attributes]
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # nothing was put into it yet
                beside.append(cell.cell_contents)
        if function.__module__ in self._files:
            named = [function.__globals__.get(name) for name in code.co_names]
            beside += [value for value in named if isinstance(value, types.FunctionType)]
        return f"{name}{_code(code)}{self.of(beside, depth + 1)}"

    def _class(self, kind: type) -> str:
        """Its name; the first time also its functions and plain values, inherited or not."""
        if kind in self._slots:
            return _name(kind)
        self._slots[kind] = slots = []
        parts = [_name(kind)]
        for owner in kind.__mro__:
            if owner in _BASES:
                continue
            if issubclass(owner, nn.Module):
                self._files.add(owner.__module__)
            for name, value in list(vars(owner).items()):
                if isinstance(value, types.MemberDescriptorType) and name not in _PLACES:
                    slots.append(value)
                inside = getattr(value, "fget", getattr(value, "__func__", value))
                if isinstance(inside, types.FunctionType) or (
                    type(inside) in _PLAIN and name[0] != "_"  # libraries keep caches there
                ):
                    parts += (name, self.of(inside))
        return ";".join(parts)

    def _attributes(self, value: Any) -> dict[str, Any]:
        """Those of an object whose class is described, in ``__dict__`` and in slots."""
        attributes = _without_marks(getattr(value, "__dict__", {}))
        for slot in self._slots[type(value)]:
            with suppress(AttributeError):  # nothing was put into it yet
                attributes[slot.__name__] = slot.__get__(value)
        return attributes

    def _module(self, module: nn.Module, depth: int) -> str:
        parts = [self._class(type(module))]
        for name, value in self._attributes(module).items():
            if name not in _OWN:
                # While a request runs, a view stands before the config.
                plain = getattr(value, "wrapped", value) if name == "config" else value
                parts += (name, self.of(plain, depth + 1))
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            lasting = map(_lasting, list(hooks.values()))
            parts += [self.of(hook) for hook in lasting if hook is not None]
        for inside in (module._parameters, module._buffers, module._modules):
            # Modules stand in each other as deep as people build them: no depth is counted.
            for name, value in list(inside.items()):
                parts += (name, self.of(value))
        if _has_state_of_its_own(type(module)):
            parts.append(self._saved_state(module))
        return f"({';'.join(parts)})"

    def _tensor(self, tensor: Tensor, depth: int) -> str:
        told = f"{tensor.dtype}{tuple(tensor.shape)}"
        if type(tensor) not in (Tensor, nn.Parameter):
            more = {name: item for name, item in vars(tensor).items() if name[:2] != "__"}
            told += f"{_name(type(tensor))}{self.of(more, depth + 1)}"
            if hasattr(tensor, "__tensor_flatten__"):
                names, context = tensor.__tensor_flatten__()
                inner = [getattr(tensor, name) for name in names]
                return f"{told}{self.of([inner, context], depth + 1)}"
        if tensor.is_meta:
            return told  # the values are with whoever offloaded them, among the attributes
        if tensor.is_quantized:
            tensor = tensor.dequantize()
        elif tensor.layout != torch.strided:
            tensor = tensor.to_dense()
        self.tensors.append(tensor)
        return f"{told}#{len(self.tensors)}"

    def _saved_state(self, module: nn.Module) -> str:
        """What the module would save besides: numbers that an extension keeps, say."""
        held = [value for name, value in vars(module).items() if name not in _OWN]
        known = _saved.get(module)
        if known is None or not _same(known[0], held):
            state: dict[str, Any] = {}
            module._save_to_state_dict(state, "", False)
            own = {*module._parameters, *module._buffers}
            extra = _Description()
            text = extra.of({name: value for name, value in state.items() if name not in own})
            parts = [text, *(_checksum(tensor) for tensor in extra.tensors)]
            known = _saved[module] = (held, _digest(parts))
        return known[1]


def _same(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(a is b for a, b in zip(some, others, strict=True))


def _code(code: types.CodeType) -> str:
    """A digest of what a function does; not of the file and lines where it stands."""
    known = _codes.get(code)
    if known is None:
        texts = map(_constant, (*code.co_names, *code.co_consts))
        known = _codes[code] = _digest([code.co_code, *texts])
    return known


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return _code(value)
    if isinstance(value, tuple):
        return f"({','.join(map(_constant, value))})"
    if isinstance(value, frozenset):  # has no order of its own
        return f"{{{','.join(sorted(map(_constant, value)))}}}"
    return repr(value)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_compilers(value: object) -> bool:
    """Whether it is a function that a compiler put around another."""
    return isinstance(value, types.FunctionType) and str(
        value.__globals__.get("__name__")
    ).startswith(_COMPILERS)


def _without_marks(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Without those of a compiler, which hold addresses, and which decorators copy."""
    return {n: value for n, value in attributes.items() if not n.startswith("_torchdynamo_")}


def _lasting(hook: object) -> object:
    """A hook, or what a method that was installed does; None for one of a request."""
    if str(getattr(hook, "__module__", "")).partition(".")[0] == "rag_middle":
        return getattr(hook, "installed", None)
    return hook


def _has_state_of_its_own(kind: type[nn.Module]) -> bool:
    return kind._save_to_state_dict is not nn.Module._save_to_state_dict


def _contents(tensors: list[Tensor]) -> list[str]:
    """A checksum of each tensor, computed where it is new or may have changed."""
    found = []
    for tensor, sample in zip(tensors, _samples(tensors), strict=True):
        version = None if tensor.is_inference() else tensor._version
        state = (version, tensor.data_ptr(), tensor.dtype, sample)
        known = _seen.get(tensor)
        if known is None or known[0] != state:
            known = _seen[tensor] = (state, _checksum(tensor))
        found.append(known[1])
    return found


@torch.no_grad()
def _samples(tensors: list[Tensor]) -> list[bytes]:
    """Some values of each tensor; one transfer per device and number format."""
    samples = [b""] * len(tensors)
    taken: dict[tuple[torch.device, torch.dtype], list[tuple[int, Tensor]]] = {}
    for index, tensor in enumerate(tensors):
        if tensor.numel():
            places = _places(tensor.numel(), tensor.device)
            if tensor.is_contiguous():
                values = tensor.view(-1).index_select(0, places)
            else:
                values = tensor[torch.unravel_index(places, tensor.shape)]
            taken.setdefault((tensor.device, tensor.dtype), []).append((index, values))
    for together in taken.values():
        joined = _bytes(torch.cat([values for _, values in together]))
        start = 0
        for index, values in together:
            end = start + values.nbytes
            samples[index] = joined[start:end]
            start = end
    return samples


@functools.lru_cache(maxsize=1024)
def _places(count: int, device: torch.device) -> Tensor:
    """Which of so many values are looked at: spread over all rows and columns, the last too."""
    places = torch.arange(min(count, _SAMPLED), dtype=torch.float64, device="cpu")
    if count > _SAMPLED:
        places = places * _GOLDEN % 1 * count
        places[-1] = count - 1
    return places.long().to(device)


def _checksum(tensor: Tensor) -> str:
    """Of all values: sums of their bits along rows and columns, so one changed value shows."""
    bits = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    whole = bits.numel() // (8 * _WIDTH) * 8 * _WIDTH
    words, rest = bits[:whole], bits[whole:]
    if words.data_ptr() % 8 or words.storage_offset() % 8:
        words = words.clone()
    table = words.view(torch.int64).view(-1, _WIDTH)  # sums wrap around: exact modulo 2**64
    return _digest([_bytes(table.sum(0)), _bytes(table.sum(1)), _bytes(rest)])


def _bytes(values: Tensor) -> bytes:
    return values.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _digest(parts: Iterable[str | bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8))
        digest.update(raw)
    return digest.hexdigest()
