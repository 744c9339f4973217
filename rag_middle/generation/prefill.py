"""What a model's cache holds before the forward pass that gives the first logits."""

from __future__ import annotations

from transformers import DynamicCache, PreTrainedModel

from rag_middle.attention import can_read_row_by_row, model_traits, read_row_by_row
from rag_middle.generation.document_cache import DocumentCache, with_documents
from rag_middle.generation.facts import device_of
from rag_middle.methods import Method
from rag_middle.tokens import TokenizedBatch

__all__ = ["begun", "held"]

#: Tokens from which on a prompt keeps a CPU busy by itself. A GPU was not measured.
_LONG = 1024


def begun(
    model: PreTrainedModel,
    method: Method,
    batch: TokenizedBatch,
    *,
    documents: DocumentCache | None = None,
    beams: int = 1,
) -> DynamicCache | None:
    """A cache that holds the beginning of every prompt already, as the method would have left it.

    It is the caller's turn on the model.

    Args:
        model: that will run.
        method: of the request.
        batch: of the request, a row for each branch.
        documents: read already.
        beams: rows that each row of the batch takes.

    Returns:
        None where the whole prompts shall go through the model together.
    """
    known = with_documents(documents, model, method, batch.prompts, beams)
    if known is not None or not method.combines:
        return known
    device = device_of(model)
    if device.type != "cpu" or min(map(len, batch.prompts)) < _LONG:
        return None
    plan = method.plan(batch.prompts, model_traits(model))
    if not can_read_row_by_row(model, plan):
        return None
    return read_row_by_row(model, plan, [each.input_ids for each in batch.prompts], device, beams)


def held(cache: DynamicCache | None) -> int:
    """Columns that a model's cache holds."""
    return 0 if cache is None else int(cache.get_seq_length())
