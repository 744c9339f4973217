"""What methods whose documents do not see each other ask of a model."""

from __future__ import annotations

from rag_middle.attention.plan import AttentionPlan, DocumentBlocks, LayerPlan
from rag_middle.attention.traits import ModelTraits
from rag_middle.methods.base import chosen_layers

__all__ = ["plan_of_blocks"]


def plan_of_blocks(name: str, traits: ModelTraits, blocks: DocumentBlocks) -> AttentionPlan:
    """The blocks in every layer.

    Args:
        name: of the method, for messages.
        traits: of the model.
        blocks: what each layer shall do.

    Raises:
        UnsupportedArchitectureError: layers that cannot be reached or have no softmax attention,
            positions that are not rotary where documents are moved, or keys that cannot be moved.
    """
    if traits.adapter == "bloom" and blocks.temperature == blocks.scale == 1:
        return AttentionPlan.uniform(range(traits.num_layers), LayerPlan(documents=blocks))
    traits.require_interface(name)
    if traits.mixed:
        raise traits.unsupported(
            f"{name} cannot keep documents apart in {traits.num_layers - len(traits.layers)} of "
            f"its {traits.num_layers} layers: they have no softmax attention and read the prompt "
            "from left to right.",
            "Use lpes or positional_hidden_states on its attention layers, or permute the "
            "documents.",
        )
    layers = chosen_layers(None, traits)
    if blocks.placement != "kept" and traits.rope_type is None:
        raise traits.unsupported(
            f"{name} gives documents other rotary positions, and this model's positions come from "
            "elsewhere (learned embeddings or ALiBi).",
            "Use no_inter_document_attention, siw or positional_hidden_states.",
        )
    # Not for the rotation: attention in chunks and shared latents come with unknown ones.
    traits.require_known_rotation(name, layers)
    after = [layer for layer in layers if traits.layers[layer].norms_after_rope]
    if blocks.placement == "to_end" and after:
        raise traits.unsupported(
            f"{name} moves the keys of documents to a common end, and this model normalises them "
            "after the rotation.",
            "Use parallel_context_windows without right_indentation, or ape.",
        )
    return AttentionPlan.uniform(layers, LayerPlan(documents=blocks))
