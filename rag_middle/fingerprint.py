"""What tells models apart: digests of their weights, config and adapters.

* `weights_sample`: some values of every parameter, the same in every number format;
* `config_sha256`: the config, as far as it decides what is computed;
* `adapters_sha256`: which adapters act, and how strongly;
* `fingerprint`: some values of every tensor, config, adapters and hooks, together.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

_SAMPLED = 64  # values of every tensor

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
    for name, values in model.named_parameters():
        if values.is_meta:
            return None
        digest.update(f"{name}{tuple(values.shape)}".encode())
        digest.update(_bytes(_sample(values).float().bfloat16()))
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
        name: {switch: getattr(module, switch, None) for switch in _SWITCHES}
        for name, module in model.named_modules()
        # Not by `getattr`, which is slow where a module lacks the attribute, and most do.
        if hasattr(type(module), "_active_adapter") or not vars(module).keys().isdisjoint(_MARKS)
    }
    for state in switches.values():  # PEFT keeps a name or a list of it, for the same adapter
        state.update({mark: [state[mark]] for mark in _MARKS if isinstance(state[mark], str)})
    return settings_sha256(switches) if switches else None


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


@torch.no_grad()
def fingerprint(model: nn.Module) -> str:
    """A digest of what a model computes: 64 values of every parameter and buffer, in their number
    format; the config; which adapters act; and forward hooks by name, but for this package's own.

    It is computed at every call, and costs milliseconds. Not noticed are an edit in place that
    leaves all of the 64 values of a tensor as they were, weights offloaded to disk, and settings
    and functions replaced on modules (`DocumentCache.clear`).
    """
    config = getattr(model, "config", None)
    config = getattr(config, "wrapped", config)  # while a request runs, a view stands before it
    hooks = [
        f"{name}.{_named(hook)}"
        for name, module in model.named_modules()
        for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
        if _named(hook)
    ]
    described = [_name(type(model)), *hooks, adapters_sha256(model) or ""]
    if config is not None:
        described += [config_sha256(config), str(getattr(config, "_attn_implementation", ""))]
    together: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        described.append(f"{name}{tuple(tensor.shape)}{tensor.dtype}")
        for values in _plain_tensors(tensor):
            sample = _sample(values)
            together.setdefault((sample.device, sample.dtype), []).append(sample)
    # One transfer per device and number format.
    return _digest([*described, *(_bytes(torch.cat(kind)) for kind in together.values())])


def _sample(values: Tensor) -> Tensor:
    """The same values of a tensor each time, 64 at most."""
    every = max(1, values.numel() // _SAMPLED)
    return values.detach().flatten()[::every][:_SAMPLED]


def _plain_tensors(tensor: Tensor) -> Iterator[Tensor]:
    """The tensor, or those that a quantised one is made of; none where its values are elsewhere."""
    if hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _plain_tensors(getattr(tensor, name))
    elif not tensor.is_meta:
        yield tensor.dequantize() if tensor.is_quantized else tensor


def _named(hook: Any) -> str:
    """What a digest says of a hook: nothing of one of a request of this package."""
    if str(getattr(hook, "__module__", "")).partition(".")[0] == "rag_middle":
        return ""
    return str(getattr(hook, "__qualname__", _name(type(hook))))


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _bytes(values: Tensor) -> bytes:
    return values.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _digest(parts: Iterable[str | bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8))
        digest.update(raw)
    return digest.hexdigest()
