"""Where documents lie in an attention call: for methods that have a number for each of them."""

from __future__ import annotations

import torch
from torch import Tensor

from rag_middle.attention import AttentionContext


def by_document(
    context: AttentionContext,
    numbers: tuple[tuple[float, ...], ...],
    *,
    outside: float = 1.0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The number of the document that each column of ``call.key`` belongs to.

    Before `AttentionContext.store` and `AttentionContext.proceed` these are the columns of the call
    itself, afterwards all that the cache has.

    Args:
        context: of the call.
        numbers: of each prompt of the batch, one for each document.
        outside: for columns of no document.
        dtype: number format; ``None`` for that of the values.

    Returns:
        `[b, 1, n, 1]` on the device of the values.
    """
    call, request = context.call, context.layer.request
    columns, device, dtype = call.key.shape[2], call.value.device, dtype or call.value.dtype

    def of_prompt() -> Tensor:
        rows = request.row_layouts()
        whole = torch.full(
            (len(rows), 1, request.width, 1), outside, dtype=torch.float64, device="cpu"
        )
        beams = len(rows) // len(numbers)
        for row, (padding, layout) in enumerate(rows):
            spans = zip(layout.documents, numbers[row // beams], strict=True)
            for (start, end), number in spans:
                whole[row, :, padding + start : padding + end] = number
        return whole.to(device, dtype)  # once per request: a copy to a GPU waits for it

    key = ("numbers by document", numbers, outside, device, dtype)
    whole = request.shared(key, of_prompt)
    # A sliding layer's cache drops the oldest columns; a static one is longer than its content.
    own = columns == call.query.shape[2]
    first = context.start if own else max(0, context.stop - columns)
    known = whole[:, :, first : first + columns]
    missing = columns - known.shape[2]
    return torch.nn.functional.pad(known, (0, 0, 0, missing), value=outside) if missing else known


def after_documents(context: AttentionContext) -> Tensor:
    """Whether each query of the call stands after its prompt's documents, `[b, n, 1, 1]`."""
    request, device = context.layer.request, context.call.query.device

    def ends() -> Tensor:
        rows = request.row_layouts()
        return torch.tensor([pad + layout.suffix_start for pad, layout in rows], device=device)

    end = request.shared(("ends of documents", device), ends)
    columns = torch.arange(context.start, context.stop, device=device)
    return (columns >= end[:, None])[:, :, None, None]
