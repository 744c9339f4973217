"""A prefix that prompts of a batch share is read once.

Prompts of a measurement share one that differ in the gold document's position, and so do several
questions about the same documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from rag_middle.attention import input_device
from rag_middle.attention.seam import MODEL_CACHE
from rag_middle.methods import Method
from rag_middle.methods.document_blocks.document_cache import (
    DocumentCache,
    can_reuse_documents,
    with_documents,
)
from rag_middle.tokens import TokenizedPrompt

#: Share of a batch's tokens from which reading its prompts one after the other pays. A GPU reads
#: them faster together (predicted).
_LEAST_SHARED = {"cpu": 0.1}
_LEAST_SHARED_ELSEWHERE = 0.5


def prefilled_cache(
    documents: DocumentCache | None,
    model: PreTrainedModel,
    method: Method,
    prompts: Sequence[TokenizedPrompt],
    beams: int = 1,
) -> DynamicCache | None:
    """A KV cache that holds the first tokens of all prompts already, left-padded.

    It is the caller's turn on the model.

    Args:
        documents: whose states are kept, see `with_documents`.
        model: that will run.
        method: of the request.
        prompts: of the request.
        beams: rows of the batch that each prompt takes.

    Returns:
        None where there is nothing to begin with.
    """
    cache = with_documents(documents, model, method, prompts)
    if cache is None:
        cache = _shared_prefix_cache(model, method, prompts)
    if cache is not None and beams > 1:
        cache.batch_repeat_interleave(beams)
    return cache


@torch.no_grad()
def _shared_prefix_cache(
    model: PreTrainedModel, method: Method, prompts: Sequence[TokenizedPrompt]
) -> DynamicCache | None:
    """All but the last token of each prompt, computed behind what it shares with an earlier one.

    None where the method changes layers, states of a token depend on more than those before it, or
    too little is shared.
    """
    rows = [prompt.input_ids for prompt in prompts]
    shared = [
        max(
            ((_common_prefix_length(rows[before], ids[:-1]), before) for before in range(index)),
            default=(0, 0),
        )
        for index, ids in enumerate(rows)
    ]
    device = input_device(model)
    least = _LEAST_SHARED.get(device.type, _LEAST_SHARED_ELSEWHERE)
    if (
        sum(length for length, _ in shared) < least * sum(map(len, rows))
        or any(type(part).plan is not Method.plan for part in method.parts)
        or not can_reuse_documents(model)
    ):
        return None
    width = max(map(len, rows)) - 1
    batch = DynamicCache()
    for index, (ids, (length, before)) in enumerate(zip(rows, shared, strict=True)):
        row, start = DynamicCache(), width - (len(rows[before]) - 1)
        for layer, states in enumerate(_layers(batch) if length else ()):
            prefix = (kept[before, None, :, start : start + length] for kept in states)
            row.update(*prefix, layer)
        rest = torch.tensor([ids[length:-1]], device=device)
        positions = torch.arange(length, len(ids) - 1, device=device)[None]
        if rest.numel():
            # The base model: logits of these tokens are of no use.
            model.base_model(
                input_ids=rest, position_ids=positions, use_cache=True, **{MODEL_CACHE: row}
            )
        for layer, states in enumerate(_layers(row)):
            if not index:
                empty = (new.new_zeros(len(rows), *new.shape[1:2], width, new.shape[-1])
                         for new in states)  # fmt: skip
                batch.update(*empty, layer)
            for kept, new in zip(_layers(batch)[layer], states, strict=True):
                kept[index, :, width - new.shape[2] :] = new[0]
    return batch


def _common_prefix_length(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _layers(cache: DynamicCache) -> list[tuple[Any, Any]]:
    """Keys and values `[b, g, n, d]` of each layer."""
    layers: list[Any] = cache.layers
    return [(layer.keys, layer.values) for layer in layers]
