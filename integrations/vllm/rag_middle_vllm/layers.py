"""A vLLM model's attention layers: found, given rotary modules of their own, and checked.

Each layer is changed by itself, from the config and what the rank has of the model, so the ranks of
tensor and pipeline parallelism need not know of each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from rag_middle.attention import LayerTraits, ModelTraits, Rotation
from rag_middle.errors import MethodConfigError, PatchIneffectiveError, UnsupportedArchitectureError
from rag_middle.methods import Method, layer_rotations
from rag_middle.ops.rope import RotaryStyle
from rag_middle_vllm.tables import NotRotatableError, prove_rotated, rotated_copy

_FAMILIES = (
    "Serve a family that has vLLM's own rotary modules (LLaMA, Qwen, Mistral, Gemma, Phi ...), or "
    "run this one with RagMiddleModel."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayer:
    """A decoder layer that this rank has.

    Attributes:
        index: 0-based, over all pipeline stages.
        module: the layer.
        attentions: what attends in it; none in layers of linear attention.
        rotary: its rotary modules; none where it attends without positions.
    """

    index: int
    module: nn.Module
    attentions: tuple[nn.Module, ...]
    rotary: tuple[nn.Module, ...]


class LoadedModel:
    """A loaded model and its configs."""

    def __init__(self, model: nn.Module, vllm_config: Any, model_config: Any) -> None:
        self.model = model
        self.config = model_config
        self.text_config = model_config.hf_text_config
        self.num_layers: int = model_config.get_total_num_hidden_layers()
        self._batched_tokens: int = vllm_config.scheduler_config.max_num_batched_tokens
        self._stage = range(*model_config.get_layers_start_end_indices(vllm_config.parallel_config))
        self._attentions = self._attention_modules()
        self._prefix = self._layer_prefix()
        self.layers = {index: self._layer(index) for index in self._stage}

    def refused(self, reason: str, alternative: str = _FAMILIES) -> UnsupportedArchitectureError:
        """The error that refuses the model."""
        return UnsupportedArchitectureError(
            self.text_config.model_type, reason=reason, alternative=alternative
        )

    def positions(self, rotary: nn.Module) -> int | None:
        """How many positions a table of this module needs; ``None`` for all that it has.

        As long as the model's own, tables would take gigabytes over all layers of a long-context
        model. But positions of images and videos can be beyond the number of tokens.
        """
        if getattr(rotary, "mrope_section", None) is not None:
            return None
        table: Tensor = rotary.cos_sin_cache  # type: ignore[assignment]
        longest: int = self.config.max_model_len
        return max(longest, min(len(table), self._batched_tokens))  # as batches made up by vLLM

    def _attention_modules(self) -> dict[str, nn.Module]:
        """All of the decoder, by name."""
        from vllm.model_executor.layers.attention import Attention, MLAAttention
        from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
        from vllm.model_executor.layers.mamba.abstract import MambaBase

        attentions: dict[str, nn.Module] = {}
        for name, module in self.model.named_modules():
            if not isinstance(module, AttentionLayerBase) or isinstance(module, MambaBase):
                continue
            if isinstance(module, MLAAttention) or self.config.use_mla:
                raise self.refused(
                    "vLLM runs its latent attention (MLA), where keys are rotated inside the "
                    "attention kernel's own modules."
                )
            if not isinstance(module, Attention):
                raise self.refused(
                    f"vLLM runs it with {type(module).__name__}, an attention of its own, whose "
                    "use of rotary tables is not known."
                )
            if module.attn_type != "decoder":
                raise self.refused(
                    f"{name} is {module.attn_type.replace('_', ' ')} attention, and the methods "
                    "are for decoders."
                )
            attentions[name] = module
        if not attentions:
            raise self.refused("it has no softmax attention on this rank.")
        return attentions

    def _layer(self, index: int) -> DecoderLayer:
        prefix = self._prefix.format(index)
        try:
            module = self.model.get_submodule(prefix)
        except AttributeError:
            module = None
        from vllm.model_executor.models.utils import PPMissingLayer

        if module is None or isinstance(module, PPMissingLayer):
            raise self.refused(
                f"this pipeline stage should have layers {self._stage.start} to "
                f"{self._stage.stop - 1}, and layer {index} ({prefix}) is not there."
            )
        attentions = {n: m for n, m in self._attentions.items() if n.startswith(f"{prefix}.")}
        rotary = tuple(self._rotary_modules(prefix, module))
        for name in attentions:
            if not rotary and not self._says_it_has_none(name):
                backend = " (it runs on vLLM's Transformers backend)" * bool(
                    self.config.using_transformers_backend()
                )
                raise self.refused(f"{prefix} has no rotary module of vLLM's{backend}.")
        return DecoderLayer(
            index=index, module=module, attentions=tuple(attentions.values()), rotary=rotary
        )

    def _layer_prefix(self) -> str:
        """The name of a decoder layer, with braces for its index."""
        prefixes = set()
        for name in self._attentions:
            parts = name.split(".")
            numbers = [position for position, part in enumerate(parts) if part.isdecimal()]
            if len(numbers) != 1:
                raise self.refused(f"the layer that {name} belongs to cannot be told.")
            prefixes.add(".".join([*parts[: numbers[0]], "{}"]))
        if len(prefixes) != 1:
            raise self.refused(f"it has several stacks of layers: {', '.join(sorted(prefixes))}.")
        return prefixes.pop()

    def _rotary_modules(self, prefix: str, layer: nn.Module) -> Iterable[nn.Module]:
        from vllm.model_executor.layers import rotary_embedding
        from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbeddingBase
        from vllm.model_executor.layers.rotary_embedding.common import ApplyRotaryEmb

        for name, module in layer.named_modules():
            if isinstance(module, RotaryEmbeddingBase):
                yield module
            elif type(module).__module__.startswith(rotary_embedding.__name__) and not isinstance(
                module, ApplyRotaryEmb
            ):
                raise self.refused(
                    f"{prefix}.{name} is a {type(module).__name__}, whose tables cannot be had for "
                    "other positions."
                )

    def _says_it_has_none(self, attention: str) -> bool:
        """Whether the module around an attention states that it has no rotary module."""
        around = self.model.get_submodule(attention.rpartition(".")[0])
        attributes = {**vars(around), **around._modules}
        return any("rotary" in name and value is None for name, value in attributes.items())

    def traits(self) -> ModelTraits:
        """The model, as far as methods that only rotate need to know it; the rest is made up.

        Layers of other pipeline stages are taken to rotate: their own ranks see to them.
        """
        config = self.text_config
        here = {
            index: bool(layer.rotary) for index, layer in self.layers.items() if layer.attentions
        }
        elsewhere = dict.fromkeys(set(range(self.num_layers)) - set(self._stage), True)
        return ModelTraits(
            model_type=config.model_type,
            num_layers=self.num_layers,
            hidden_size=config.hidden_size,
            rope_type=None,
            layers={
                index: LayerTraits(
                    layer=index,
                    heads=config.num_attention_heads,
                    kv_heads=getattr(config, "num_key_value_heads", config.num_attention_heads),
                    head_size=self.config.get_head_size(),
                    layer_type=None,
                    uses_rope=rotates,
                    rotary=RotaryStyle(pairing="half", pairs=self.config.get_head_size() // 2),
                    norms_after_rope=(),
                    affine_projections=False,
                    rotates_by_table=False,
                    value_projection=None,
                    sliding_window=None,
                    attention_chunk=None,
                    softcap=None,
                    sinks=False,
                    score_scale=1.0,
                )
                for index, rotates in sorted((here | elsewhere).items())
            },
        )


def rotate_layers(
    model: nn.Module, method: Method, vllm_config: Any, model_config: Any
) -> dict[int, Rotation]:
    """Make the layers of a loaded model rotate positions as a method says.

    Rotary modules that layers share stay as they are for others (a draft model, say): layers get
    copies.

    Args:
        model: as a loader of vLLM returns it.
        method: see `rag_middle.methods.layer_rotations`.
        vllm_config: the engine's config.
        model_config: of this model.

    Returns:
        The rotations of the layers that this rank changed, by index; empty where the method's
        parameters change none of them.

    Raises:
        UnsupportedArchitectureError: the model has a layer that cannot be changed.
        MethodConfigError: the method is more than rotary tables, or does not fit the model.
        MethodConfigError: the method's parameters are for a model of another shape.
        PatchIneffectiveError: a layer still rotates as before.
    """
    loaded = LoadedModel(model, vllm_config, model_config)
    rotations = layer_rotations(method, loaded.traits())
    _check_shared_keys(loaded, rotations)
    copies: dict[tuple[int, Rotation], nn.Module] = {}
    changed = {}
    for index, rotation in rotations.items():
        layer = loaded.layers.get(index)
        if layer is None or rotation == Rotation():  # of another stage, or meant to stay
            continue
        for rotary in dict.fromkeys(layer.rotary):
            key = (id(rotary), rotation)
            if key not in copies:
                copies[key] = _copy(loaded, rotary, rotation)
            _replace(layer, rotary, copies[key])
        changed[index] = rotation
    _check_outside(loaded, {replaced for replaced, _ in copies})
    return changed


def _check_outside(loaded: LoadedModel, replaced: set[int]) -> None:
    """Refuse a model that may rotate with what its layers share, and not with what they have."""
    for name, module in loaded.model.named_modules(remove_duplicate=False):
        if id(module) in replaced and not any(part.isdecimal() for part in name.split(".")):
            raise loaded.refused(f"it rotates with {name}, outside its layers.")


def _check_shared_keys(loaded: LoadedModel, rotations: Mapping[int, Rotation]) -> None:
    """Refuse queries that would meet keys of another layer, rotated on another scale."""
    names: dict[Any, int] = {
        attention.layer_name: layer.index
        for layer in loaded.layers.values()
        for attention in layer.attentions
    }
    for layer in loaded.layers.values():
        for attention in layer.attentions:
            target = names.get(getattr(attention, "kv_sharing_target_layer_name", None))
            neutral = Rotation()
            if target is not None and rotations.get(layer.index, neutral) != rotations.get(
                target, neutral
            ):
                raise MethodConfigError(
                    f"Layer {layer.index} attends to the keys of layer {target}, so both need the "
                    f"same rotation, and the method gives them {rotations.get(layer.index)} and "
                    f"{rotations.get(target)}."
                )


def _copy(loaded: LoadedModel, rotary: nn.Module, rotation: Rotation) -> nn.Module:
    try:
        changed = rotated_copy(rotary, rotation, loaded.positions(rotary))
    except NotRotatableError as error:
        raise loaded.refused(f"{error}.") from error
    try:
        prove_rotated(rotary, changed)
    except NotRotatableError as error:
        raise PatchIneffectiveError(
            f"{error}, under {rotation}. This version of vLLM is not served: see the supported "
            "versions in the documentation of rag-middle-vllm."
        ) from error
    return changed


def _replace(layer: DecoderLayer, rotary: nn.Module, changed: nn.Module) -> None:
    """Put `changed` wherever the layer has `rotary`, and make sure that nothing else of it is left.

    Raises:
        PatchIneffectiveError: a module of the layer keeps the old one, or its table.
    """
    for module in layer.module.modules():
        for name, child in module._modules.items():
            if child is rotary:
                module._modules[name] = changed
    for name, module in layer.module.named_modules():
        for attribute, value in _values(module):
            if _belongs_to(value, rotary):
                raise PatchIneffectiveError(
                    f"Layer {layer.index} keeps its old rotary module or table in "
                    f"{name or 'itself'}.{attribute}, where it cannot be replaced: this model "
                    "cannot be changed in this version of vLLM."
                )


def _values(module: nn.Module) -> Iterable[tuple[str, object]]:
    """What a module, and what it delegates to (an attention's implementation), refers to."""
    for name, value in vars(module).items():
        if name in ("_modules", "_buffers", "_parameters"):
            yield from value.items()
            continue
        yield name, value
        if not isinstance(value, nn.Module) and type(value).__module__.startswith("vllm."):
            yield from getattr(value, "__dict__", {}).items()


def _belongs_to(value: object, rotary: nn.Module) -> bool:
    table: Tensor = rotary.cos_sin_cache  # type: ignore[assignment]
    if isinstance(value, Tensor):
        plain = type(value) in (Tensor, nn.Parameter)  # others may have no storage to ask for
        return value is table or (plain and value.data_ptr() == table.data_ptr())
    return value is rotary or getattr(value, "__self__", None) is rotary
