"""Keys and values of documents that were read apart, computed once and put into later caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from rag_middle.attention import (
    AttentionPlan,
    ModelTraits,
    Planner,
    applied,
    invocation_of,
    model_traits,
    puts_virtual_tokens,
)
from rag_middle.methods.parallel_context.attention import DocumentBlocks
from rag_middle.tokens import TokenizedPrompt


@dataclass(frozen=True, slots=True)
class DocumentStates:
    """What a model keeps of a piece of a prompt: of the prefix, or of a document behind it.

    Attributes:
        keys: per layer, `[g, m, d]`, rotated at their positions.
        values: per layer, `[g, m, dv]`.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    @property
    def tokens(self) -> int:
        """Tokens of the piece (``m``)."""
        return self.keys[0].shape[1]

    @property
    def nbytes(self) -> int:
        """Memory that the tensors take."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))


class _Apart(Planner):
    """The plan under which documents are read apart, behind the prefix."""

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        return AttentionPlan.uniform(traits.layers, DocumentBlocks(placement="from_start"))


def can_reuse_documents(model: PreTrainedModel) -> bool:
    """Whether states of a document stay right in other prompts of this model.

    Not where its attention cannot be reached, nor where a layer keeps something else than every
    token's key and value (windows, linear attention), nor where rotary frequencies depend on the
    length of the prompt, or an adapter on which tokens are read together.
    """
    traits = model_traits(model)
    rope_type = traits.rope_type or ""
    return (
        bool(traits.layers and rope_type)
        and not traits.mixed
        and not any(kind in rope_type for kind in ("dynamic", "longrope"))
        and not any(layer.sliding_window for layer in traits.layers.values())
        and not invocation_of(model)
        and not puts_virtual_tokens(model)
    )


@torch.no_grad()
def document_states(
    model: PreTrainedModel,
    prefix: Sequence[int],
    documents: Sequence[Sequence[int]],
    device: torch.device,
) -> tuple[DocumentStates, tuple[DocumentStates, ...]]:
    """States of a prefix and of documents behind it, in one pass over all of them.

    Args:
        model: see `can_reuse_documents`.
        prefix: token ids, possibly none.
        documents: token ids of each, at least one token together with the prefix.
        device: where token ids go in.

    Returns:
        Those of the prefix and of each document.
    """
    prompt = TokenizedPrompt.assembled(
        prefix=prefix, documents=documents, suffix=(), document_ids=[None] * len(documents)
    )
    cache = DynamicCache()
    with applied(model, _Apart(), [prompt]):
        # The base model: logits of documents are of no use.
        model.base_model(
            input_ids=torch.tensor([prompt.input_ids], device=device),
            past_key_values=cache,
            use_cache=True,
        )
    pieces = [_piece(cache, *span) for span in ((0, len(prefix)), *prompt.layout.documents)]
    return pieces[0], tuple(pieces[1:])


def _piece(cache: DynamicCache, start: int, end: int) -> DocumentStates:
    layers: list[Any] = cache.layers
    # Copies: a view would keep the whole prompt alive.
    return DocumentStates(
        keys=tuple(layer.keys[0, :, start:end].clone() for layer in layers),
        values=tuple(layer.values[0, :, start:end].clone() for layer in layers),
    )


def filled_cache(pieces: Sequence[DocumentStates], rows: int) -> DynamicCache:
    """A cache that holds these pieces one after the other, the same in each of `rows` rows."""
    cache = DynamicCache()
    for layer in range(len(pieces[0].keys)):
        # On the layer's device: models may be spread over several, and states kept elsewhere.
        device = pieces[0].keys[layer].device
        keys = torch.cat([piece.keys[layer].to(device) for piece in pieces], dim=1)
        values = torch.cat([piece.values[layer].to(device) for piece in pieces], dim=1)
        cache.update(
            keys[None].expand(rows, -1, -1, -1), values[None].expand(rows, -1, -1, -1), layer
        )
    return cache
