"""What methods whose documents do not attend to each other ask of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rag_middle.attention import AttentionPlan, ModelTraits
from rag_middle.methods.base import chosen_layers
from rag_middle.methods.requirements import require_interface, require_known_rotation, unsupported

if TYPE_CHECKING:  # methods are listed without PyTorch
    from rag_middle.methods.parallel_context.kernels import Placement

__all__ = ["plan_of_blocks", "require_separable"]


def plan_of_blocks(name: str, traits: ModelTraits, **settings: Any) -> AttentionPlan:
    """`DocumentBlocks` in every layer.

    Args:
        name: of the method, for messages.
        traits: of the model.
        settings: of the blocks, what each layer shall do.

    Raises:
        UnsupportedArchitectureError: layers that cannot be reached or have no softmax attention,
            positions that are not rotary where documents are moved, or keys that cannot be moved.
    """
    from rag_middle.methods.parallel_context.attention import DocumentBlocks
    from rag_middle.methods.parallel_context.bloom import BloomDocumentBlocks

    blocks = DocumentBlocks(**settings)
    if traits.model_type == "bloom" and blocks.temperature == blocks.scale == 1:
        return AttentionPlan.uniform(range(traits.num_layers), BloomDocumentBlocks(blocks))
    return AttentionPlan.uniform(require_separable(name, traits, blocks.placement), blocks)


def require_separable(name: str, traits: ModelTraits, placement: Placement) -> tuple[int, ...]:
    """The layers of a model that can read documents apart from each other: all.

    Args:
        name: of the method, for messages.
        traits: of the model.
        placement: of the documents.

    Raises:
        UnsupportedArchitectureError: as for `plan_of_blocks`.
    """
    require_interface(name, traits)
    if traits.mixed:
        raise unsupported(
            traits,
            f"{name} cannot keep documents apart in {traits.num_layers - len(traits.layers)} of "
            f"its {traits.num_layers} layers: they have no softmax attention and read the prompt "
            "from left to right.",
        )
    layers = chosen_layers(None, traits)
    if placement != "kept" and traits.rope_type is None:
        raise unsupported(
            traits,
            f"{name} gives documents other rotary positions, and this model's positions come from "
            "elsewhere (learned embeddings or ALiBi).",
        )
    # Not for the rotation: attention in chunks and shared latents come with unknown ones.
    require_known_rotation(name, traits, layers)
    after = [layer for layer in layers if traits.layers[layer].norms_after_rope]
    if placement in ("to_end", "to_order") and after:
        raise unsupported(
            traits,
            f"{name} moves the keys of documents after they were read, and this model normalises "
            "them after the rotation.",
        )
    return layers
