"""What a model's attention layers are like, as far as the methods care.

Nothing here is looked up by family name: `rag_middle.attention.probe` runs the model on a few
tokens and reads these facts off its behaviour.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rag_middle.attention.rotary import TableFormat
from rag_middle.errors import UnsupportedArchitectureError
from rag_middle.ops.rope import RotaryStyle

__all__ = ["ADAPTERS", "LayerTraits", "ModelTraits"]

#: Models with a purpose-made adapter, and the methods it serves.
ADAPTERS = {
    "bloom": "structured_prompting, parallel_context_windows, no_inter_document_attention",
    "mpt": "positional_hidden_states",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTraits:
    """One softmax-attention layer.

    Attributes:
        layer: index in the decoder.
        heads: query heads ``h``.
        kv_heads: key/value heads ``g``.
        head_size: ``d``.
        layer_type: the name under which the model keeps this layer's rotary frequencies apart.
        uses_rope: queries and keys are rotated (false for NoPE layers).
        rotary: how they are rotated; ``None`` where no known pairing explains the model's output.
        table_format: layout of the model's cosine and sine tables.
        norms_after_rope: attributes of the attention module that normalise rotated queries and
            keys, so that un-rotated ones must skip them and be normalised later.
        affine_projections: queries, keys and values depend on the hidden state affinely, so a
            change of one channel is a rank-one update.
        sliding_window: tokens a query can see back, itself included; ``None`` for all.
        softcap: scores are squashed to ``softcap * tanh(score / softcap)``.
        sinks: the softmax has a learned extra term per head.
        score_scale: factor on query-key products.
    """

    layer: int
    heads: int
    kv_heads: int
    head_size: int
    layer_type: str | None
    uses_rope: bool
    rotary: RotaryStyle | None
    table_format: TableFormat
    norms_after_rope: tuple[str, ...]
    affine_projections: bool
    sliding_window: int | None
    softcap: float | None
    sinks: bool
    score_scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTraits:
    """A decoder as the methods see it.

    Attributes:
        model_type: ``config.model_type``.
        num_layers: decoder layers, attention or not.
        hidden_size: size of the residual stream.
        rope_type: ``default``, ``linear``, ``dynamic``, ``yarn``, ``llama3``, ``longrope``, or
            ``None`` for models without rotary embedding.
        layers: softmax-attention layers that go through transformers' attention interface, by
            index.
        obstacle: why the attention layers cannot be reached; empty where they can.
        adapter: name of a purpose-made adapter for a model the interface does not reach.
        context_window: most tokens the model was made for, ``None`` if it does not say.
    """

    model_type: str
    num_layers: int
    hidden_size: int
    rope_type: str | None
    layers: dict[int, LayerTraits]
    obstacle: str = ""
    adapter: str | None = None
    context_window: int | None = None

    @property
    def mixed(self) -> bool:
        """Some decoder layers have no softmax attention (linear attention, state spaces)."""
        return bool(self.layers) and len(self.layers) < self.num_layers

    def require_interface(self, method: str) -> None:
        """Raise `UnsupportedArchitectureError` unless the attention layers can be reached."""
        if self.obstacle:
            instead = ADAPTERS.get(self.adapter or "", "method='none'")
            raise self.unsupported(
                f"{method} cannot be applied: {self.obstacle}.",
                f"Use {instead}, long_context_reorder or permutation, or a RoPE model such as a "
                "LLaMA, Qwen or Mistral.",
            )

    def require_rope(self, method: str) -> None:
        """Raise unless at least one layer's positions come from a rotary embedding."""
        if not any(layer.uses_rope for layer in self.layers.values()):
            self.require_interface(method)
            raise self.unsupported(
                f"{method} rescales rotary positions, and this model has none.",
                "Use positional_hidden_states or siw.",
            )

    def require_known_rotation(self, method: str, layers: tuple[int, ...]) -> None:
        """Raise unless we can rotate queries and keys of these layers as the model does."""
        unknown = [
            layer
            for layer in layers
            if self.layers[layer].uses_rope and self.layers[layer].rotary is None
        ]
        if unknown:
            raise self.unsupported(
                f"{method} rotates queries and keys itself, and the rotation of layers {unknown} "
                "follows no pairing of head dimensions it knows.",
                "Use position_interpolation, lpes or positional_hidden_states.",
            )

    def unsupported(self, reason: str, alternative: str) -> UnsupportedArchitectureError:
        """The error to raise for this model."""
        return UnsupportedArchitectureError(self.model_type, reason=reason, alternative=alternative)

    def describe(self) -> dict[str, Any]:
        """Facts by name, for tables and reports."""
        kinds = self.layers.values()
        return {
            "model_type": self.model_type,
            "layers": self.num_layers,
            "rope": self.rope_type,
            "pairing": sorted({k.rotary.pairing for k in kinds if k.rotary}),
            "partial_rope": any(k.rotary and 2 * k.rotary.pairs < k.head_size for k in kinds),
            "nope_layers": [k.layer for k in kinds if not k.uses_rope],
            "sliding_layers": [k.layer for k in kinds if k.sliding_window],
            "grouped_queries": any(k.heads != k.kv_heads for k in kinds),
            "softcap": any(k.softcap for k in kinds),
            "sinks": any(k.sinks for k in kinds),
            "norm_after_rope": any(k.norms_after_rope for k in kinds),
            "other_layers": self.num_layers - len(self.layers) if self.layers else 0,
        }
