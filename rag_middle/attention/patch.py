"""Apply a method to a model for the length of a ``with`` block, and leave no trace."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn
from transformers import PreTrainedModel

from rag_middle.attention.caches import ReadColumns
from rag_middle.attention.change import Layer
from rag_middle.attention.core import LayerCore
from rag_middle.attention.locks import OfModel, model_lock
from rag_middle.attention.plan import AttentionPlan
from rag_middle.attention.probe import (
    attention_modules,
    attention_settings,
    is_attention,
    probe,
    text_config,
)
from rag_middle.attention.request import Request
from rag_middle.attention.rotary import keep_frequencies, rotary_modules
from rag_middle.attention.seam import (
    MethodHook,
    cache_name,
    config_views,
    handle_attention,
    keyword_arguments,
)
from rag_middle.attention.traits import ModelTraits
from rag_middle.errors import (
    ConfigError,
    MethodConfigError,
    PatchIneffectiveError,
    UnsupportedGenerationError,
)
from rag_middle.options import KERNELS, Kernels
from rag_middle.tokens import TokenizedPrompt


class Planner(Protocol):
    """A method, as far as this module needs to know it."""

    def check_fits(self, traits: ModelTraits) -> None:
        """Raise where this is not for such a model; by default it is for any."""
        return

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        """What the attention layers shall do for these prompts."""
        ...

    def check_plan_suffices(
        self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits
    ) -> None:
        """Raise where more than the plan is needed; by default it is all there is."""
        return


#: Traits, and the settings under which they were found.
_traits: OfModel[tuple[list[dict[str, str]], ModelTraits]] = OfModel()
_kernels: ContextVar[Kernels] = ContextVar("kernels", default="auto")
_stance_lock = threading.Lock()


def model_traits(model: PreTrainedModel) -> ModelTraits:
    """What the attention layers of `model` are like; found out once, and after it was changed.

    Changes that count are other modules, and other settings of attention modules or the config.
    """
    with model_lock(model):
        settings = attention_settings(model)
        remembered = _traits.get(model)
        if remembered is None or remembered[0] != settings:
            with _running_eagerly(model):
                remembered = _traits.put(model, (settings, probe(model)))
        return remembered[1]


def assume_traits(model: PreTrainedModel, traits: ModelTraits) -> PreTrainedModel:
    """Say what a model is like that cannot be asked: its tensors hold no numbers. Returns it."""
    _traits.put(model, (attention_settings(model), traits))
    return model


@contextmanager
def use_kernels(kernels: Kernels) -> Iterator[None]:
    """Say what computes the attention of methods in requests that this thread begins in the block.

    Raises:
        UnsupportedGenerationError: no such choice.
    """
    KERNELS.check(kernels)
    token = _kernels.set(kernels)
    try:
        yield
    finally:
        _kernels.reset(token)


def kernels_in_use() -> Kernels:
    """What was chosen, ``"auto"`` where nothing was."""
    return _kernels.get()


@contextmanager
def applied(
    model: PreTrainedModel,
    method: Planner,
    prompts: Sequence[TokenizedPrompt],
    *,
    prefilled: int = 0,
    prepared: bool = False,
) -> Iterator[Request]:
    """Run `model` under `method` for one request.

    Inside the block, ``model(...)`` and ``model.generate(...)`` follow the method; afterwards the
    model is exactly as it was, whatever was raised. Requests of several threads on one model, or on
    models around one network, take turns; a thread that uses the model outside any block never sees
    the method, one begun in the block (``asyncio.to_thread``) neither. Tasks of asyncio share a
    thread: leave the block before awaiting anything.

    Args:
        model: a Hugging Face causal language model.
        method: a method object.
        prompts: in tokens, in batch order. They are left-padded; a prompt may take several rows
            in a row (beams). The whole prompt must come in the first forward pass.
        prefilled: columns of the prompt, documents and all before them, that the cache given to
            the model holds already, as this method would have cached them: where documents do not
            attend to each other, of one prompt (`DocumentCache`).
        prepared: the prompts are what the method makes of them: as `RagMiddleModel.encode` under it
            puts them in order or repeats them, one per forward pass where it combines several.

    Raises:
        UnsupportedArchitectureError: the model cannot take this method.
        ConfigError: Triton kernels were chosen (`use_kernels`), and the method has
            none, or they cannot run.
        MethodConfigError: parameters that do not fit the model, or were calibrated for one of
            another shape, a block inside another, or, unless `prepared`, a method that changes
            prompts or combines passes and leaves attention as it is.
        UnsupportedGenerationError: what a method cannot serve: prompts in pieces, padding on the
            right, gradient checkpointing on a GPU, whose backward pass runs in other threads.
        PatchIneffectiveError: the model ran, and the method never got to see an attention layer.
    """
    if isinstance(prompts, TokenizedPrompt):
        raise MethodConfigError(
            "applied() takes prompts in a list: pass [prompt] for a single one."
        )
    if not prompts:
        raise MethodConfigError("applied() needs at least one TokenizedPrompt, got none.")
    traits = model_traits(model)
    method.check_fits(traits)
    if not prepared:
        method.check_plan_suffices(tuple(prompts), traits)
    plan = method.plan(tuple(prompts), traits)
    layouts = tuple(prompt.layout for prompt in prompts)
    plan.check(traits.num_layers, layouts)
    request = Request(layouts=layouts, prefilled=prefilled, kernels=kernels_in_use())
    if request.kernels == "triton" and not all(change.has_kernels for change in plan.changes):
        raise ConfigError(
            f"{method} has no Triton kernels. Use kernels='auto', which computes with PyTorch's "
            "operators where a method has none."
        )
    with model_lock(model), keep_frequencies(model), ExitStack() as stack:
        config = text_config(model)
        # Assisted decoding by early exit lowers it, and leaves it so where its pass is refused.
        stack.callback(setattr, config, "num_hidden_layers", config.num_hidden_layers)
        if plan.layers:
            _install(model, traits, plan, request, stack)
        else:
            stack.enter_context(handle_attention(dict.fromkeys(_under_methods_of(model))))
        yield request
        if not plan.layers:
            return
        if request.attention_calls:
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


#: Modules of the blocks that are open. Those of other threads wait for the model's lock, so an open
#: one that is met here is of this thread, in whatever context (tasks of asyncio have their own).
_under_methods: set[nn.Module] = set()


def _install(
    model: PreTrainedModel,
    traits: ModelTraits,
    plan: AttentionPlan,
    request: Request,
    stack: ExitStack,
) -> None:
    modules = modules_by_layer(model, traits)
    if not _under_methods.isdisjoint(modules.values()):
        raise MethodConfigError(
            "This model already runs under a method in this thread, perhaps in another task or a "
            "generator that was not closed. Compose methods with Compose([...]) instead of nesting "
            "blocks, and let blocks of other tasks end first."
        )
    stack.callback(_under_methods.difference_update, list(modules.values()))
    _under_methods.update(modules.values())
    # A wrapper of adapters generates with the model inside, and its own forward pass never runs.
    runs = next((part for part in model.modules() if isinstance(part, PreTrainedModel)), model)
    cores: dict[nn.Module, LayerCore] = {}
    traits.require_layers("This method")
    for index, changes in plan.layers.items():
        module, of_layer = modules.get(index), traits.layers.get(index)
        if module is None or of_layer is None:
            continue  # a layer without softmax attention: nothing to plan there
        read = ReadColumns(index, request.prefilled)
        layer = Layer(module, of_layer, request, stack, runs, read)
        core = cores[module] = LayerCore(layer, changes)
        stack.callback(core.close)
        layer.hook(module.register_forward_pre_hook, core.before, with_kwargs=True)
    answering = [module for module, core in cores.items() if core.needs_attention_call]
    stack.enter_context(config_views(answering))
    depends_on_prompt = any(change.depends_on_prompt for change in plan.changes)
    first = next(iter(cores), None)
    for number, rotary in enumerate(rotary_modules(model)):
        record = MethodHook(partial(request.tables.record, number), first)
        stack.callback(rotary.register_forward_hook(record, with_kwargs=True).remove)

    def begin_pass(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if depends_on_prompt and not request.forward_passes:
            arguments = keyword_arguments(module, args, kwargs)
            tokens = arguments.get("input_ids")
            if tokens is None:
                tokens = arguments.get("inputs_embeds")
            cached = 0 if arguments.get(cache_name(arguments)) is None else request.prefilled
            request.check_prompt(tokens, arguments.get("attention_mask"), cached)
        if torch.is_grad_enabled() and _layers_run_again_elsewhere(model):
            raise UnsupportedGenerationError(
                "Gradient checkpointing runs layers again in the backward pass, which on this "
                "device is in a thread of PyTorch's own, where the method has no effect. Leave it "
                "off, or put the block into torch.autograd.set_multithreading_enabled(False)."
            )
        request.forward_passes += 1

    # Wrappers may call its `forward`, past its hooks: then the model inside it tells of the pass.
    inside = next(
        (p for p in runs.modules() if isinstance(p, PreTrainedModel) and p is not runs), None
    )
    begun = False

    def begin(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal begun
        if module is runs or not begun:
            begun = module is runs
            begin_pass(module, args, kwargs)

    def end(*_: Any) -> None:
        nonlocal begun
        begun = False

    for module in filter(None, (runs, inside)):
        hook = module.register_forward_pre_hook(MethodHook(begin, first), with_kwargs=True)
        stack.callback(hook.remove)
    hook = runs.register_forward_hook(MethodHook(end, first), always_call=True)
    stack.callback(hook.remove)
    stack.enter_context(handle_attention({m: core.attend for m, core in cores.items()}))


def _layers_run_again_elsewhere(model: nn.Module) -> bool:
    """Whether a backward pass runs layers of the model again, in another thread than this."""
    return (
        torch.autograd.is_multithreading_enabled()
        and any(
            part.training and getattr(part, "gradient_checkpointing", False)
            for part in model.modules()
        )
        and any(parameter.device.type != "cpu" for parameter in model.parameters())
    )


def _under_methods_of(model: nn.Module) -> list[nn.Module]:
    """Modules of the model that run under another block's method, if any do in this thread."""
    return [m for m in model.modules() if m in _under_methods] if _under_methods else []


def modules_by_layer(model: nn.Module, traits: ModelTraits) -> dict[int, nn.Module]:
    """The attention modules of the layers that `traits` knows, for whoever looks into them.

    Raises:
        UnsupportedArchitectureError: they are compiled.
    """
    require_uncompiled(model, traits)
    if not traits.layers:
        # Attention of its own, that no plan can change.
        named = [module for module in model.modules() if is_attention(module)]
        by_index = {getattr(module, "layer_idx", None): module for module in named}
        return {index: module for index, module in by_index.items() if isinstance(index, int)}
    return {
        int(module.layer_idx): module
        for module in attention_modules(model)
        if module.layer_idx in traits.layers
    }


def require_uncompiled(model: nn.Module, traits: ModelTraits) -> None:
    """Refuse what looks into layers of a compiled model, or changes them.

    Raises:
        UnsupportedArchitectureError: a module that runs attention is compiled.
    """
    for name, module in model.named_modules():
        if is_compiled(module) and any(map(is_attention, module.modules())):
            raise traits.unsupported(
                f"{f'its module {name!r}' if name else 'it'} is compiled (torch.compile), and "
                "compiled code bypasses the hooks that methods need.",
                "Pass the model as it was before torch.compile() (compiled._orig_mod), after "
                "model.compile() one loaded anew; or use a method that only puts documents in "
                "order.",
            )


def is_compiled(module: nn.Module) -> bool:
    """Whether `torch.compile` made the module, or changed how it is called."""
    return (
        type(module).__name__ == "OptimizedModule"
        or module._compiled_call_impl is not None
        or hasattr(module.forward, "_torchdynamo_orig_callable")
    )


@contextmanager
def _running_eagerly(model: nn.Module) -> Iterator[None]:
    """Run compiled modules as they were before, for the time being."""
    if not any(map(is_compiled, model.modules())):  # any: the compiler would trace our hooks
        yield
        return
    # The stance is the process's: in turn, or the last to leave would not restore the first one.
    with _stance_lock, torch.compiler.set_stance("force_eager"):
        yield
