"""What every method needs that makes attention independent of the order of documents."""

from __future__ import annotations

from rag_middle.attention.traits import ModelTraits
from rag_middle.methods.base import chosen_layers

__all__ = ["order_free_layers"]


def order_free_layers(method: str, rotates: str, traits: ModelTraits) -> tuple[int, ...]:
    """All layers of a model in which each query gives documents positions of their own.

    Args:
        method: its registered name, for the errors.
        rotates: what the method rotates document by document, ``"queries"`` or ``"keys"``.
        traits: the model's.

    Raises:
        UnsupportedArchitectureError: layers without softmax attention (they read in order), an
            attention that cannot be reached, positions that are not rotary, or a rotation that
            is not understood.
    """
    traits.require_interface(method)
    if traits.mixed:
        raise traits.unsupported(
            f"{method} cannot make {traits.num_layers - len(traits.layers)} of its "
            f"{traits.num_layers} layers independent of document order: they have no softmax "
            "attention and read the prompt from left to right.",
            "Use lpes or positional_hidden_states on its attention layers, or permutation.",
        )
    if traits.rope_type is None:
        raise traits.unsupported(
            f"{method} re-assigns rotary positions, and this model's positions come from "
            "elsewhere (learned embeddings or ALiBi).",
            "Use siw, positional_hidden_states or permutation.",
        )
    layers = chosen_layers(None, traits)
    traits.require_known_rotation(method, layers)
    if any(traits.layers[layer].norms_after_rope for layer in layers):
        raise traits.unsupported(
            f"{method} rotates {rotates} by document, and this model normalises them after the "
            "rotation.",
            "Use ms_poe, lpes or positional_hidden_states.",
        )
    return layers
