"""Apply a method to a model for the length of a ``with`` block, and leave no trace."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from torch import nn
from transformers import PreTrainedModel

from rag_middle.attention.bloom import BloomBlockCore, bloom_attention_modules
from rag_middle.attention.core import LayerCore
from rag_middle.attention.mpt import MptChannelCore, mpt_attention_modules
from rag_middle.attention.plan import AttentionPlan, DocumentBlocks, PositionScale
from rag_middle.attention.probe import attention_modules, config_views, probe, rotary_modules
from rag_middle.attention.request import Request
from rag_middle.attention.seam import (
    AttentionHandler,
    handle_attention,
    handler_of,
    handlers_in_force,
    keyword_arguments,
)
from rag_middle.attention.traits import ModelTraits
from rag_middle.errors import MethodConfigError, PatchIneffectiveError
from rag_middle.layout import PromptLayout

__all__ = ["Planner", "applied", "model_lock", "model_traits", "modules_by_layer"]


class Planner(Protocol):
    """A method, as far as this module needs to know it."""

    def plan(self, layouts: tuple[PromptLayout, ...], traits: ModelTraits) -> AttentionPlan:
        """What the attention layers shall do for these prompts."""
        ...


_traits: WeakKeyDictionary[nn.Module, ModelTraits] = WeakKeyDictionary()
_locks: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
_registry_lock = threading.Lock()


def model_lock(model: nn.Module) -> threading.RLock:
    """The lock that requests on this model take turns with."""
    with _registry_lock:
        return _locks.setdefault(model, threading.RLock())


def model_traits(model: PreTrainedModel) -> ModelTraits:
    """What the attention layers of `model` are like; found out once per model."""
    with model_lock(model):
        traits = _traits.get(model)
        if traits is None:
            traits = _traits[model] = probe(model)
        return traits


@contextmanager
def applied(
    model: PreTrainedModel,
    method: Planner,
    layouts: Sequence[PromptLayout],
    *,
    prefilled: int = 0,
) -> Iterator[Request]:
    """Run `model` under `method` for one request.

    Inside the block, ``model(...)`` and ``model.generate(...)`` follow the method; afterwards the
    model is exactly as it was, whatever was raised. Requests of several threads on one model take
    turns; a thread that uses the model outside any block never sees the method.

    Args:
        model: a Hugging Face causal language model.
        method: a method object, e.g. ``PINE()``.
        layouts: one per prompt, in batch order. Prompts are left-padded; a prompt may take
            several rows in a row (beams). The whole prompt must come in the first forward pass.
        prefilled: columns of the prompt, documents and all before them, that the cache given to
            the model holds already, as this method would have cached them: where documents do not
            see each other, of one prompt (`rag_middle.attention.document_states`), and where only
            last tokens attend differently (`rag_middle.attention.prompt_states`).

    Raises:
        UnsupportedArchitectureError: the model cannot take this method.
        MethodConfigError: parameters that do not fit the model, or a block inside another.
        PatchIneffectiveError: the model ran, and the method never got to see an attention layer.
    """
    if isinstance(layouts, PromptLayout):
        raise MethodConfigError(
            "applied() takes one layout per prompt in a list: pass [layout] for a single prompt."
        )
    if not layouts:
        raise MethodConfigError("applied() needs one PromptLayout per prompt, got none.")
    traits = model_traits(model)
    plan = method.plan(tuple(layouts), traits)
    plan.check(traits.num_layers, tuple(layouts))
    request = Request(layouts=tuple(layouts), prefilled=prefilled)
    request.tables.scales = _position_scales(plan)
    with model_lock(model), ExitStack() as stack:
        if plan.layers:
            _install(model, traits, plan, request, stack)
        else:
            stack.enter_context(handle_attention(_handlers_of_others(model)))
        yield request
        if not plan.layers or request.attention_calls:
            return
        if not request.forward_passes:
            warnings.warn(
                "The model did not run inside this applied() block, or ran in another thread, "
                "where the method has no effect. Open the block in the thread that runs the model.",
                stacklevel=3,
            )
        else:
            raise PatchIneffectiveError(
                f"{traits.model_type}: the model ran {request.forward_passes} forward passes and "
                f"{method} reached none of its attention layers. Is the model compiled or "
                "replaced by another runtime? Run `rag-middle verify` to check the installation."
            )


def _install(
    model: PreTrainedModel,
    traits: ModelTraits,
    plan: AttentionPlan,
    request: Request,
    stack: ExitStack,
) -> None:
    modules = modules_by_layer(model, traits)
    if any(handler_of(module) is not None for module in modules.values()):
        raise MethodConfigError(
            "This model already runs under a method in this thread. Compose methods with "
            "Compose([...]) instead of nesting blocks."
        )
    if traits.adapter == "mpt":
        handlers = _install_mpt(modules, traits, plan, request, stack)
        depends_on_layouts = True
    elif traits.adapter == "bloom":
        handlers = _install_bloom(modules, traits, plan, request, stack)
        depends_on_layouts = True
    else:
        cores = _install_cores(modules, traits, plan, request, stack)
        handlers = dict(cores)
        viewed = [module for module, core in cores.items() if core.needs_attention_call]
        stack.enter_context(config_views(viewed))
        depends_on_layouts = bool(viewed)
    first = next(iter(handlers), None)
    for rotary in rotary_modules(model):
        record = _guarded(request.tables.record, owner=first)
        stack.callback(_hook(rotary.register_forward_hook, record, kwargs=True))

    def begin_pass(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if depends_on_layouts and not request.forward_passes:
            arguments = keyword_arguments(module, args, kwargs)
            request.check_prompt(arguments.get("input_ids"), arguments.get("attention_mask"))
        request.forward_passes += 1

    guarded = _guarded(begin_pass, owner=first)
    stack.callback(_hook(model.register_forward_pre_hook, guarded, kwargs=True))
    # Blocks of other models that this one stands in go on.
    stack.enter_context(handle_attention({**handlers_in_force(), **handlers}))


def _install_cores(
    modules: dict[int, nn.Module],
    traits: ModelTraits,
    plan: AttentionPlan,
    request: Request,
    stack: ExitStack,
) -> dict[nn.Module, LayerCore]:
    cores: dict[nn.Module, LayerCore] = {}
    for layer, layer_plan in plan.layers.items():
        module = modules.get(layer)
        if module is None:
            continue  # a layer without softmax attention: nothing to plan there
        core = cores[module] = LayerCore(module, traits.layers[layer], layer_plan, request)
        stack.callback(core.close)
        stack.callback(_hook(module.register_forward_pre_hook, _guarded(core.before), kwargs=True))
    return cores


def _install_mpt(
    modules: dict[int, nn.Module],
    traits: ModelTraits,
    plan: AttentionPlan,
    request: Request,
    stack: ExitStack,
) -> dict[nn.Module, AttentionHandler]:
    handlers: dict[nn.Module, AttentionHandler] = {}
    for layer, layer_plan in plan.layers.items():
        if layer_plan.hidden is None or layer_plan.claims() != {"hidden"}:
            raise traits.unsupported(
                "only hidden states can be changed in this model.",
                "Use positional_hidden_states alone.",
            )
        module = modules[layer]
        core = handlers[module] = MptChannelCore(module, layer_plan.hidden, request)
        project = _guarded(core.project, owner=module)
        stack.callback(_hook(module.register_forward_pre_hook, _guarded(core.before), kwargs=True))
        stack.callback(_hook(module.register_forward_hook, _guarded(core.after)))
        stack.callback(_hook(module.Wqkv.register_forward_hook, project))  # type: ignore[union-attr]
    return handlers


def _install_bloom(
    modules: dict[int, nn.Module],
    traits: ModelTraits,
    plan: AttentionPlan,
    request: Request,
    stack: ExitStack,
) -> dict[nn.Module, AttentionHandler]:
    handlers: dict[nn.Module, AttentionHandler] = {}
    for layer, layer_plan in plan.layers.items():
        blocks = layer_plan.documents
        if not isinstance(blocks, DocumentBlocks) or layer_plan != replace(
            layer_plan, positions=None, hidden=None, weights=None
        ):
            raise traits.unsupported(
                "only what documents see can be changed in this model.",
                "Use structured_prompting, parallel_context_windows or "
                "no_inter_document_attention alone.",
            )
        module = modules[layer]
        core = handlers[module] = BloomBlockCore(module, blocks, request)
        stack.callback(_hook(module.register_forward_pre_hook, _guarded(core.before), kwargs=True))
    return handlers


def _handlers_of_others(model: nn.Module) -> dict[nn.Module, AttentionHandler]:
    """The handlers in force but those of `model`, which then runs as it is in another's block."""
    handlers = dict(handlers_in_force())
    if handlers:
        for module in model.modules():
            handlers.pop(module, None)
    return handlers


def _position_scales(plan: AttentionPlan) -> tuple[float, ...]:
    """The distinct position scales of a plan."""
    scales = (layer.positions for layer in plan.layers.values())
    return tuple({s.scale: None for s in scales if isinstance(s, PositionScale)})


def modules_by_layer(model: nn.Module, traits: ModelTraits) -> dict[int, nn.Module]:
    """The attention modules of the layers that `traits` knows."""
    if traits.adapter == "mpt":
        return mpt_attention_modules(model)
    if traits.adapter == "bloom":
        return bloom_attention_modules(model)
    return {
        int(module.layer_idx): module
        for module in attention_modules(model)
        if module.layer_idx in traits.layers
    }


def _hook(register: Callable[..., Any], hook: Callable[..., Any], *, kwargs: bool = False) -> Any:
    """Register a hook and return what removes it."""
    return register(hook, with_kwargs=kwargs).remove if kwargs else register(hook).remove


def _guarded(hook: Callable[..., Any], *, owner: nn.Module | None = None) -> Callable[..., Any]:
    """The hook, but only in the thread whose request it belongs to."""

    def guarded(module: nn.Module, *arguments: Any) -> Any:
        if handler_of(owner or module) is None:
            return None
        return hook(module, *arguments)

    return guarded
