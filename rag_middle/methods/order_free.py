"""What every method needs that makes attention independent of the order of documents."""

from __future__ import annotations

from rag_middle.attention.traits import ModelTraits
from rag_middle.methods.base import chosen_layers
from rag_middle.methods.requirements import require_interface, require_known_rotation, unsupported

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
    require_interface(method, traits)
    if traits.mixed:
        raise unsupported(
            traits,
            f"{method} cannot make {traits.num_layers - len(traits.layers)} of its "
            f"{traits.num_layers} layers independent of document order: they have no softmax "
            "attention and read the prompt from left to right.",
        )
    if traits.rope_type is None:
        raise unsupported(
            traits,
            f"{method} re-assigns rotary positions, and this model's positions come from "
            "elsewhere (learned embeddings or ALiBi).",
        )
    layers = chosen_layers(None, traits)
    require_known_rotation(method, traits, layers)
    if any(traits.layers[layer].norms_after_rope for layer in layers):
        raise unsupported(
            traits,
            f"{method} rotates {rotates} by document, and this model normalises them after the "
            "rotation.",
        )
    return layers
