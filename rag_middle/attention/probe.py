"""Read a model's `ModelTraits` off its behaviour, with one forward pass over a few tokens.

While the model runs on the probe tokens, each attention module is asked for its queries and keys
under changed arguments:

* cosine and sine zero: what vanishes is rotated; an unchanged query means no rotation (NoPE);
* cosine one, sine zero: the un-rotated query, from which the pairing is found by trying;
* hidden state plus a unit vector, twice as long: whether projections are affine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rag_middle.attention.capture import capture, skip_modules
from rag_middle.attention.rotary import TableFormat, pair_tables
from rag_middle.attention.seam import (
    AttentionCall,
    ConfigView,
    base_attention,
    handle_attention,
    handler_of,
    keyword_arguments,
    parameters,
)
from rag_middle.attention.traits import ADAPTERS, LayerTraits, ModelTraits
from rag_middle.ops.rope import RotaryStyle, rotate

__all__ = ["attention_modules", "probe", "rotary_modules", "text_config"]

_PROBE_TOKENS = 6


def text_config(model: PreTrainedModel) -> Any:
    """The config of the decoder, also where it is part of a larger model."""
    config: Any = model.config
    return config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """Modules that may call transformers' attention interface."""
    return [
        module
        for module in model.modules()
        if "Attention" in type(module).__name__
        and hasattr(module, "config")
        and isinstance(getattr(module, "layer_idx", None), int)
        and "hidden_states" in parameters(type(module).forward)
    ]


def rotary_modules(model: nn.Module) -> list[nn.Module]:
    """Modules that make cosine and sine tables from positions."""
    return [module for module in model.modules() if "RotaryEmb" in type(module).__name__]


@contextmanager
def config_views(modules: list[nn.Module]) -> Iterator[None]:
    """Give the modules a `ConfigView` for the time being."""
    configs = [(module, module.config) for module in modules]
    for module, config in configs:
        module.config = ConfigView(config, module)  # type: ignore[assignment]
    try:
        yield
    finally:
        for module, config in configs:
            module.config = config


def probe(model: PreTrainedModel) -> ModelTraits:
    """Find out what the attention layers of `model` are like. The model is left as it was."""
    config = text_config(model)
    found: dict[int, LayerTraits] = {}
    modules = attention_modules(model)
    arguments: dict[nn.Module, dict[str, Any]] = {}

    class Observe:
        def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
            module = call.module
            layer: int = module.layer_idx  # type: ignore[assignment]
            found[layer] = _layer_traits(module, arguments[module], call)
            return base_attention(call)

    def remember(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if handler_of(module) is not None:  # else another thread is using the model
            arguments[module] = keyword_arguments(module, args, kwargs)

    embeddings: Any = model.get_input_embeddings()
    device = embeddings.weight.device
    if device.type == "meta":  # offloaded: comes for the call to where it is computed
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # Any tokens will do, but not a special one that a model might treat apart.
    tokens = torch.arange(_PROBE_TOKENS, device=device)[None] + min(10, config.vocab_size // 2)
    training = {module: module.training for module in model.modules()}
    handles = []
    try:
        handles += [m.register_forward_pre_hook(remember, with_kwargs=True) for m in modules]
        model.eval()
        with (
            torch.no_grad(),
            config_views(modules),
            handle_attention(dict.fromkeys(modules, Observe())),
        ):
            model(input_ids=tokens, use_cache=False)
    finally:
        for module, was_training in training.items():
            module.training = was_training
        for handle in handles:
            handle.remove()

    model_type: str = config.model_type
    return ModelTraits(
        model_type=model_type,
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        rope_type=_rope_type(config) if any(t.uses_rope for t in found.values()) else None,
        layers=dict(sorted(found.items())),
        obstacle="" if found else _obstacle(model_type),
        adapter=model_type if model_type in ADAPTERS else None,
        context_window=getattr(config, "max_position_embeddings", None),
    )


def _obstacle(model_type: str) -> str:
    positions = {"mpt": "ALiBi", "bloom": "ALiBi", "falcon": "ALiBi or its own RoPE"}
    kind = positions.get(model_type)
    return "its attention does not go through transformers' attention interface" + (
        f" (positions: {kind})" if kind else ""
    )


def _rope_type(config: Any) -> str | None:
    parameters = getattr(config, "rope_parameters", None) or {}
    if "rope_type" not in parameters:  # one set of parameters per layer type
        types = {p.get("rope_type", "default") for p in parameters.values() if isinstance(p, dict)}
        return "+".join(sorted(types)) or "default"
    rope_type: str = parameters["rope_type"]
    return rope_type


def _layer_traits(module: nn.Module, arguments: dict[str, Any], call: AttentionCall) -> LayerTraits:
    embeddings = arguments.get("position_embeddings")
    rotary: RotaryStyle | None = None
    table_format: TableFormat = "halves"
    uses_rope = False
    after: tuple[str, ...] = ()
    if _is_cos_sin(embeddings):
        assert embeddings is not None
        cos, sin = embeddings
        zeros = (torch.zeros_like(cos), torch.zeros_like(sin))
        ones = (torch.ones_like(cos), torch.zeros_like(sin))
        seen: dict[str, list[Tensor]] = {}
        with _watch_norms(module, seen):
            vanished = capture(module, arguments, position_embeddings=zeros).query
            capture(module, arguments, position_embeddings=ones)
        # A norm whose input changes with the rotation comes after it.
        after = tuple(name for name, pair in seen.items() if not torch.equal(*pair))
        uses_rope = bool(after) or not torch.equal(vanished, call.query)
        if uses_rope:
            with skip_modules(module, after):
                plain = capture(module, arguments, position_embeddings=ones).query
                rotated = capture(module, arguments).query
            rotary, table_format = _find_rotation(plain, rotated, cos, sin)
    elif isinstance(embeddings, Tensor):
        # One complex table, say: positions can be rescaled through it, rotation stays unknown.
        still = capture(module, arguments, position_embeddings=torch.ones_like(embeddings)).query
        uses_rope = not torch.equal(still, call.query)
    options = call.options
    scale = options.get("scaling")
    head_size = call.query.shape[-1]
    return LayerTraits(
        layer=module.layer_idx,  # type: ignore[arg-type]
        heads=call.query.shape[1],
        kv_heads=call.key.shape[1],
        head_size=head_size,
        layer_type=_layer_type(module),
        uses_rope=uses_rope,
        rotary=rotary,
        table_format=table_format,
        norms_after_rope=after,
        affine_projections=not after and _is_affine(module, arguments),
        sliding_window=options.get("sliding_window"),
        softcap=options.get("softcap"),
        sinks=options.get("s_aux") is not None,
        score_scale=head_size**-0.5 if scale is None else float(scale),
    )


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
    handles = []
    for name, child in module.named_children():
        if "norm" in name.lower() or "Norm" in type(child).__name__:

            def record(_m: nn.Module, args: tuple[Any, ...], name: str = name) -> None:
                if handler_of(module) is not None:
                    seen.setdefault(name, []).append(args[0].clone())

            handles.append(child.register_forward_pre_hook(record))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _find_rotation(
    plain: Tensor, rotated: Tensor, cos: Tensor, sin: Tensor
) -> tuple[RotaryStyle | None, TableFormat]:
    """The pairing and table format under which rotating `plain` gives `rotated`."""
    # Half precision: the model rounds products in its own order.
    tolerance = 1e-4 if plain.dtype == torch.float32 else 5e-2
    formats: tuple[TableFormat, ...] = ("halves", "repeated", "single")
    for table_format in formats:
        pair_cos, pair_sin = pair_tables(cos, sin, table_format)
        if 2 * pair_cos.shape[-1] > plain.shape[-1]:
            continue
        for pairing in ("half", "interleaved"):
            style = RotaryStyle(pairing=pairing, pairs=pair_cos.shape[-1])
            ours = rotate(plain, pair_cos[:, None], pair_sin[:, None], style)
            if torch.allclose(ours, rotated, rtol=tolerance, atol=tolerance):
                return style, table_format
    return None, "halves"


def _is_affine(module: nn.Module, arguments: dict[str, Any]) -> bool:
    """Whether a step along one channel moves q, k and v by the same vector everywhere."""
    hidden: Tensor = arguments["hidden_states"]
    step = torch.zeros_like(hidden)
    step[..., 0] = hidden.float().abs().mean().clamp(min=1.0).to(hidden.dtype)
    calls = [capture(module, arguments, hidden_states=hidden + times * step) for times in (0, 1, 4)]
    tolerance = 1e-3 if hidden.dtype == torch.float32 else 5e-2
    for attribute in ("query", "key", "value"):
        base, once, four = (getattr(c, attribute).float() for c in calls)
        size = base.abs().max() + four.abs().max()
        if ((four - base) - 4 * (once - base)).abs().max() > tolerance * size:
            return False
    return True
