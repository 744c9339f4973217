"""Read a model's `ModelTraits` off its behaviour, with one forward pass over a few tokens.

While the model runs on the probe tokens, each attention module is asked for its queries and keys
under changed arguments, for random hidden states of the usual size:

* cosine and sine zero: what vanishes is rotated; an unchanged query means no rotation (NoPE);
* cosine one, sine zero: the un-rotated query, from which the pairing is found by trying;
* large random steps in all channels, alone and together: whether projections are affine;
* several tables at once: whether the rotation broadcasts over them;
* other hidden states for one of its parts: whether that part makes the values, and nothing else;
* other hidden states of all tokens but the last: whether they reach it past the softmax attention.

The first two are yes-or-no questions whose answers differ by the whole query. Each comparison is
relative to what it compares, number by number, so that it holds at any width and in any precision,
and where a device adds in another order from one call to the next.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from math import inf
from typing import Any, get_args

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rag_middle.attention.capturing import (
    alike,
    capture,
    output_for_ones,
    random_normal,
    skip_modules,
)
from rag_middle.attention.locks import modules_of
from rag_middle.attention.mixing import decoder_layers, mixes_in_layer, mixes_in_projections
from rag_middle.attention.rotary import pair_tables, rotary_modules, stored_frequencies
from rag_middle.attention.seam import (
    AttentionCall,
    MethodHook,
    backend_name,
    base_attention,
    cache_argument,
    config_views,
    handle_attention,
    in_eval_mode,
    keyword_arguments,
    parameters,
    uncompiled,
)
from rag_middle.attention.traits import LayerTraits, ModelTraits, context_window, input_device
from rag_middle.attention.windows import windows_of_masks
from rag_middle.ops.rope import RotaryStyle, TableFormat, rotate

_PROBE_TOKENS = 6

#: Lengths of the steps that tell affine projections, in sizes of the hidden state: the first whose
#: outputs are finite. Long enough to run into any clip that a prompt could run into.
_STEPS = (64.0, 8.0, 1.0)
#: A position after any that a model was made for: logarithms of it are large, too.
_FAR = 2**24
_SETTINGS = frozenset({type(None), bool, int, float, str, list, tuple, dict})
#: The mode (``training``) is among them: requests run without dropout in any.
_OF_ANY_MODULE = frozenset(vars(nn.Module()))
_DRAWS = 4  # 24 random tokens: no channel is quiet in all of them


def text_config(model: PreTrainedModel) -> Any:
    """The config of the decoder, also where it is part of a larger model."""
    config: Any = model.config
    return config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config


def is_attention(module: nn.Module) -> bool:
    """Whether the module is one of attention: by its name, or as it asks for the interface."""
    return _is_attention_class(type(module))  # type: ignore[arg-type]


@lru_cache(maxsize=1024)  # asked of every module of a model at each request
def _is_attention_class(kind: type[nn.Module]) -> bool:
    code = getattr(inspect.unwrap(kind.forward), "__code__", None)
    return "Attention" in kind.__name__ or (
        code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names  # LongcatFlashMLA
    )


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """Modules that may call transformers' attention interface."""
    return [
        module
        for module in model.modules()
        if is_attention(module)
        and hasattr(module, "config")
        and isinstance(getattr(module, "layer_idx", None), int)
        and "hidden_states" in parameters(type(module).forward)
    ]


def attention_settings(model: PreTrainedModel) -> list[dict[str, str]]:
    """What the decoder's config and its attention modules are set to: `probe` finds their effects.

    Windows, scales and caps are such settings, and may be changed while a model is in use.
    """
    modules = [module for module in modules_of(model) if is_attention(module)]
    return [
        {
            name: repr(value)
            for name, value in vars(part).items()
            if type(value) in _SETTINGS and name not in _OF_ANY_MODULE
        }
        for part in (text_config(model), *modules)
    ]


def probe(model: PreTrainedModel) -> ModelTraits:
    """Find out what the attention layers of `model` are like. The model is left as it was."""
    config = text_config(model)
    modules = attention_modules(model)
    borrowing = [m.layer_idx for m in modules if getattr(m, "is_kv_shared_layer", False)]
    layers: dict[int, LayerTraits] = {}
    obstacle = (
        f"its layers {borrowing} attend to keys and values of other layers, as those have rotated "
        "and cached them"
    )
    if not borrowing:
        layers, obstacle = _probed_layers(model, config, modules)
    return ModelTraits(
        model_type=config.model_type,
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        rope_type=_rope_type(config) if any(t.uses_rope for t in layers.values()) else None,
        layers=dict(sorted(layers.items())),
        obstacle="" if layers else obstacle,
        context_window=context_window(config),
    )


def _probed_layers(
    model: PreTrainedModel, config: Any, modules: list[nn.Module]
) -> tuple[dict[int, LayerTraits], str]:
    """Traits by layer, from one pass over a few tokens; and what to say where there are none."""
    layers: dict[int, LayerTraits] = {}
    peculiar: dict[int, str] = {}
    arguments: dict[nn.Module, dict[str, Any]] = {}
    tables: dict[int, Any] = {}  # by the number of the rotary module that made them
    mixing: dict[nn.Module, bool] = {}  # layers in which tokens reach others past the attention

    def observe(call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        module = call.module
        layer: int = module.layer_idx  # type: ignore[assignment]
        reason = _peculiarity(module, arguments[module], call)
        if layer in layers or layer in peculiar:
            reason = "it attends several times in a layer"
        if reason:
            peculiar.setdefault(layer, reason)
        else:
            layers[layer] = _layer_traits(
                module, arguments[module], call, tables, mixing.get(module, False)
            )
        return base_attention(call)

    def remember(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        arguments[module] = keyword_arguments(module, args, kwargs)

    def keep(number: int, _module: Any, _args: Any, kwargs: dict[str, Any], made: Any) -> None:
        if "layer_type" not in kwargs:
            tables[number] = made

    by_parts: dict[tuple[Any, ...], bool] = {}

    def mix(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        parts = tuple((name, type(part)) for name, part in layer.named_modules())
        if parts not in by_parts:  # one of each kind: not twice the work of the pass
            by_parts[parts] = mixes_in_layer(layer, within[layer], args, kwargs)
        mixing.update(dict.fromkeys(within[layer], by_parts[parts]))

    # Any tokens will do, but not a special one that a model might treat apart.
    first = min(10, config.vocab_size // 2)
    tokens = torch.arange(first, first + _PROBE_TOKENS, device=input_device(model))[None]
    # Not a wrapper of adapters around it, which may have a word for each row of its call.
    runs = next((part for part in model.modules() if isinstance(part, PreTrainedModel)), model)
    within = decoder_layers(model, modules)
    with (
        ExitStack() as hooks,
        in_eval_mode(model),
        torch.no_grad(),
        config_views(modules),
        handle_attention(dict.fromkeys(modules, observe)),
    ):
        for module in modules:
            hook = MethodHook(remember)
            hooks.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        for layer in within:
            hook = MethodHook(mix, modules[0])
            hooks.callback(layer.register_forward_pre_hook(hook, with_kwargs=True).remove)
        for number, rotary in enumerate(rotary_modules(model) if modules else ()):
            hook = MethodHook(partial(keep, number), modules[0])
            hooks.callback(rotary.register_forward_hook(hook, with_kwargs=True).remove)
        runs(input_ids=tokens, use_cache=False)

    rotaries = [uncompiled(rotary_modules(model)[number]) for number in tables]
    if any(list(rotary.buffers()) and not stored_frequencies(rotary) for rotary in rotaries):
        # GPT-J and CodeGen since transformers 5.24, which also give the sine first.
        return {}, (
            "its rotary embedding looks its tables up, and methods on transformers' attention "
            "interface make others from frequencies"
        )
    by_layer: dict[int, nn.Module] = {m.layer_idx: m for m in modules}  # type: ignore[misc]
    undeclared = {i: by_layer[i] for i, traits in layers.items() if not traits.sliding_window}
    for index, window in windows_of_masks(runs, config, undeclared, tokens).items():
        layers[index] = replace(layers[index], sliding_window=window)
    if peculiar:  # no layer alone: what the others do would rest on what these hand on
        return {}, f"{peculiar[min(peculiar)]} (layer {min(peculiar)})"
    return layers, "its attention does not go through transformers' attention interface"


def _peculiarity(module: nn.Module, arguments: dict[str, Any], call: AttentionCall) -> str:
    """What the module does around its attention that methods would undo without a word, if so.

    They take the scores of a call for products of its queries and keys under the model's mask, and
    its keys for those of the tokens.
    """
    tensors = [value for value in arguments.values() if isinstance(value, Tensor)]
    mask = call.mask
    if isinstance(mask, Tensor) and not any(_same(mask, value) for value in tensors):
        return "its attention modules change the mask that they are given"
    for name, value in call.options.items():
        if isinstance(value, Tensor) and not (
            name in _PLAIN_TENSORS or any(value is other for other in tensors)
        ):
            return f"its attention modules pass a {name} of their own to attention"
    if call.key.shape[2] != arguments["hidden_states"].shape[1]:
        return "its attention modules add keys to those of the tokens"
    if call.key is call.value:
        return "its keys are its values"
    return "its attention is not causal" if _looks_ahead(module, mask) else ""


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)


#: Tensors besides queries, keys, values and mask that attention is called with and methods know.
_PLAIN_TENSORS = ("position_ids", "cache_position", "s_aux")


def _looks_ahead(module: nn.Module, mask: Any) -> bool:
    if not isinstance(mask, Tensor) or mask.ndim != 4:
        return getattr(module, "is_causal", True) is False
    ahead = mask[..., 0, 1:]
    return bool((ahead if mask.dtype == torch.bool else ahead == 0).any())


def _rope_type(config: Any) -> str | None:
    parameters = getattr(config, "rope_parameters", None) or {}
    if "rope_type" not in parameters:  # one set of parameters per layer type
        types = {p.get("rope_type", "default") for p in parameters.values() if isinstance(p, dict)}
        return "+".join(sorted(types)) or "default"
    rope_type: str = parameters["rope_type"]
    return rope_type


def _layer_traits(
    module: nn.Module,
    arguments: dict[str, Any],
    call: AttentionCall,
    tables: Mapping[int, Any],
    mixes: bool,
) -> LayerTraits:
    embeddings = arguments.get("position_embeddings")
    hidden: Tensor = arguments["hidden_states"]
    size = hidden.float().square().mean().sqrt().item()
    size = size if 0 < size < inf else 1.0
    probed = arguments | {"hidden_states": size * random_normal(hidden.shape, hidden, seed=0)}
    rotary: RotaryStyle | None = None
    uses_rope = rotates_by_table = False
    after: tuple[str, ...] = ()
    if _is_cos_sin(embeddings):
        assert embeddings is not None
        cos, sin = embeddings
        zeros = (torch.zeros_like(cos), torch.zeros_like(sin))
        ones = (torch.ones_like(cos), torch.zeros_like(sin))
        seen: dict[str, list[Tensor]] = {}
        with _watch_norms(module, seen):
            vanished = capture(module, probed, position_embeddings=zeros).query
            plain = capture(module, probed, position_embeddings=ones).query
        # A norm whose input vanishes with the rotation comes after it.
        after = tuple(name for name, (zero, one) in seen.items() if _vanishes(zero, one))
        uses_rope = bool(after) or _vanishes(vanished, plain)
        if uses_rope:
            with skip_modules(module, after):
                if after:
                    plain = capture(module, probed, position_embeddings=ones).query
                rotated = capture(module, probed).query
            rotary = _find_rotation(plain, rotated, cos, sin)
            rotates_by_table = _rotates_by_table(module, probed, cos)
    elif isinstance(embeddings, Tensor):
        # One complex table, say: positions can be rescaled through it, rotation stays unknown.
        zero = torch.zeros_like(embeddings)
        vanished = capture(module, probed, position_embeddings=zero).query
        uses_rope = _vanishes(vanished, capture(module, probed).query)
    options = call.options
    scale = options.get("scaling")
    head_size = call.query.shape[-1]
    return LayerTraits(
        layer=module.layer_idx,  # type: ignore[arg-type]
        heads=call.query.shape[1],
        kv_heads=call.key.shape[1],
        head_size=head_size,
        layer_type=_rotary_module(embeddings, tables) if len(tables) > 1 else _layer_type(module),
        uses_rope=uses_rope,
        rotary=rotary,
        norms_after_rope=after,
        affine_projections=not after
        and not _knows_place(module, probed)
        and _is_affine(module, arguments, size),
        rotates_by_table=rotates_by_table,
        value_projection=_value_projection(module, probed),
        sliding_window=options.get("sliding_window"),
        attention_chunk=_attention_chunk(module),
        # PyTorch's fused attention has none, and older transformers let a model run without.
        softcap=None if backend_name(module) == "sdpa" else options.get("softcap"),
        sinks=options.get("s_aux") is not None,
        score_scale=head_size**-0.5 if scale is None else float(scale),
        mixes_besides=mixes or mixes_in_projections(module, probed),
        scales_by_position=_knows_place(module, probed, by_cache=False),
    )


def _attention_chunk(module: nn.Module) -> int | None:
    # Only the mask shows it otherwise, and none is made for a prompt of one chunk.
    config = getattr(module, "config", None)
    types = getattr(config, "layer_types", None)
    if types is not None and types[module.layer_idx] != "chunked_attention":
        return None
    size: int | None = getattr(config, "attention_chunk_size", None)
    return size


def _vanishes(zero: Tensor, full: Tensor) -> bool:
    """Whether any channel of `full` `[..., d]` is missing from `zero`."""
    tokens = tuple(range(full.ndim - 1))
    missing = (full.float() - zero.float()).abs().amax(tokens)
    # Half: a channel is missing altogether or differs by rounding.
    return bool((missing > 0.5 * full.float().abs().amax(tokens)).any())


def _rotary_module(embeddings: Any, tables: Mapping[int, Any]) -> int | None:
    """The number of the rotary module, of several, that made the tables of a layer."""
    if not _is_cos_sin(embeddings):
        return None
    cos = embeddings[0]
    return next((n for n, made in tables.items() if _same(made[0].to(cos.device), cos)), None)


def _layer_type(module: nn.Module) -> str | None:
    own = getattr(module, "layer_type", None) or getattr(module, "attention_type", None)
    if isinstance(own, str):
        return own
    types = getattr(module.config, "layer_types", None)
    index: int = module.layer_idx  # type: ignore[assignment]
    return types[index] if types and index < len(types) else None


def _is_cos_sin(embeddings: Any) -> bool:
    return (
        isinstance(embeddings, tuple)
        and len(embeddings) == 2
        and all(isinstance(t, Tensor) and t.is_floating_point() for t in embeddings)
    )


@contextmanager
def _watch_norms(module: nn.Module, seen: dict[str, list[Tensor]]) -> Iterator[None]:
    """Record the inputs of the module's q/k norms, call by call."""

    def record(name: str, _m: nn.Module, args: tuple[Any, ...]) -> None:
        seen.setdefault(name, []).append(args[0].clone())

    with ExitStack() as hooks:
        for name, child in module.named_children():
            if "norm" in name.lower() or "Norm" in type(child).__name__:
                hook = MethodHook(partial(record, name), module)
                hooks.callback(child.register_forward_pre_hook(hook).remove)
        yield


def _find_rotation(plain: Tensor, rotated: Tensor, cos: Tensor, sin: Tensor) -> RotaryStyle | None:
    """The pairing and table format under which rotating `plain` gives `rotated`."""
    # Two roundings of products and one of their sum, by the model in its own order. Float32: calls
    # may also differ by the order in which a device adds.
    tolerance = max(1e-4, 8 * torch.finfo(plain.dtype).eps)
    plain, rotated, cos, sin = (tensor.float() for tensor in (plain, rotated, cos, sin))
    # Both products are at most as large as these two together. The median: a device's own order
    # of adding shows most in numbers that nearly cancel.
    allowed = tolerance * (plain.abs() + rotated.abs() + plain.abs().median())
    for table_format in get_args(TableFormat):
        pair_cos, pair_sin = pair_tables(cos, sin, table_format)
        if 2 * pair_cos.shape[-1] > plain.shape[-1]:
            continue
        for pairing in ("half", "interleaved"):
            style = RotaryStyle(pairing, pair_cos.shape[-1], table_format)
            ours = rotate(plain, pair_cos[:, None], pair_sin[:, None], style)
            if ((ours - rotated).abs() <= allowed).all():
                return style
    return None


def _rotates_by_table(module: nn.Module, arguments: dict[str, Any], like: Tensor) -> bool:
    """Whether tables `[t, b, h, 1, w]` give queries `[t, 1, b, h, 1, d]` of a token, keys alike.

    Each head by a table of its own where keys have as many, else all by one, `[t, b, 1, 1, w]`.
    Compared with a batch of rows, each of which has the table to itself.
    """
    t, b = 3, 2
    token = arguments["hidden_states"][:1, -1:]
    table = random_normal((1, 1, like.shape[-1]), like, seed=3)
    plain = capture(module, arguments, hidden_states=token, position_embeddings=(table, table))
    h = plain.query.shape[1] if plain.query.shape[1] == plain.key.shape[1] else 1
    rows = t * b * h
    cos, sin = (random_normal((rows, 1, like.shape[-1]), like, seed) for seed in (3, 4))
    alone = capture(
        module,
        arguments,
        hidden_states=token.expand(rows, -1, -1),
        position_embeddings=(cos, sin),
    )
    tables = tuple(table.view(t, b, h, 1, -1) for table in (cos, sin))
    try:
        call = capture(
            module,
            arguments,
            hidden_states=token.expand(b, -1, -1),
            position_embeddings=tables,
        )
    except Exception:  # whatever a rotation makes of tables that it does not expect
        return False
    for turned, rotated in ((call.query, alone.query), (call.key, alone.key)):
        expected = rotated.view(t, 1, b, h, *rotated.shape[1:])
        own = expected.diagonal(dim1=3, dim2=4).movedim(-1, 3) if h > 1 else expected[:, :, :, 0]
        if turned.shape != own.shape or not alike(turned, own):
            return False
    return True


def _value_projection(module: nn.Module, arguments: dict[str, Any]) -> str | None:
    """The child that makes the values, and nothing else, of the hidden states it is called with."""
    first: Tensor = arguments["hidden_states"]
    second = random_normal(first.shape, first, seed=5)
    changed = arguments | {"hidden_states": second}
    of_first, of_second = (capture(module, x) for x in (arguments, changed))
    # A gate on the attention's output is made of hidden states too.
    if not alike(*(output_for_ones(module, x) for x in (arguments, changed))):
        return None

    def feed_first(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        return (first, *args[1:]) if args and args[0] is second else None

    for name, child in module.named_children():
        hook = child.register_forward_pre_hook(feed_first)
        try:
            mixed = capture(module, changed)
        finally:
            hook.remove()
        makes_values = alike(mixed.value, of_first.value)
        if makes_values and not alike(mixed.value, of_second.value):
            others = ((mixed.query, of_second.query), (mixed.key, of_second.key))
            return name if all(alike(*pair) for pair in others) else None
    return None


class _LongCache:
    """A cache that says that many tokens went before."""

    def get_seq_length(self, _layer: int = 0) -> int:
        return _FAR

    def update(self, key: Tensor, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return key, value


def _knows_place(module: nn.Module, arguments: dict[str, Any], *, by_cache: bool = True) -> bool:
    """Whether queries, keys or values depend on where tokens stand besides by rotary tables.

    Some models scale queries by it, as they are told it or as they count in the cache.
    """
    moved: dict[str, Any] = {}
    if isinstance(place := arguments.get("position_ids"), Tensor):
        moved["position_ids"] = place + _FAR
    if by_cache and (name := cache_argument(module)) is not None:
        moved[name] = _LongCache()
    if not moved:
        return False
    try:
        far = capture(module, arguments, **moved)
    except Exception:  # whatever else it asks of its cache
        return True
    near = capture(module, arguments)
    pairs = ((far.query, near.query), (far.key, near.key), (far.value, near.value))
    return not all(alike(*pair) for pair in pairs)


def _is_affine(module: nn.Module, arguments: dict[str, Any], size: float) -> bool:
    """Whether q, k and v of a sum of two steps are the sums of theirs: ``f(x + y) + f(0) = f(x) +
    f(y)`` for steps `x` and `y` in all channels, many times as long as a hidden state.

    A norm gives an output of one size whatever the length of its input, and a clip one that is not
    larger than its bound: either misses the sum by much of the step's whole effect. An affine map
    misses it by rounding, in which its bias is small beside steps as long as these. A step in one
    channel would not do: its effect falls below rounding as the hidden state grows wider.
    """
    hidden: Tensor = arguments["hidden_states"]
    shape = (_DRAWS, *hidden.shape[1:])
    first, second = (random_normal(shape, hidden, seed) for seed in (1, 2))
    for length in _STEPS:
        x, y = size * length * first, size * length * second
        steps = torch.cat((torch.zeros_like(x), x, y, x + y))
        call = capture(module, arguments, hidden_states=steps)
        outputs = (call.query, call.key, call.value)
        if all(bool(t.isfinite().all()) for t in outputs):
            return all(map(_adds_up, outputs))
    return False


def _adds_up(outputs: Tensor) -> bool:
    """Whether every channel of `outputs` adds up: `[4 b, h, n, d]`, of steps 0, x, y and x + y."""
    rounding = 2 * torch.finfo(outputs.dtype).eps * outputs.float().abs().amax((0, 2))
    none, first, second, both = outputs.float().chunk(4)
    missing = (both + none - first - second).square().mean((0, 2)).sqrt()
    effect = (both - none).square().mean((0, 2)).sqrt()
    # Of its effect, a norm misses 0.41, a clip half or more; 8-bit activations 0.02, bf16 0.005.
    return bool((missing <= 0.1 * effect + rounding).all())
