"""Attention whose weight on the initial token is rescaled per document.

``out_i += (alpha_i - 1) a_i0 v_0`` with ``a_i0 = exp(s_i0 - lse_i)``: one score and the log-sum-exp
per row, never the matrix of weights. Renormalised, that is divided by ``1 + (alpha_i - 1) a_i0``;
redistributed, ``v_0`` is less the mean value of the key tokens.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rag_middle.attention import AttentionContext
from rag_middle.layout import PromptLayout
from rag_middle.methods.document_columns import by_document
from rag_middle.ops.scores import document_tokens

if TYPE_CHECKING:
    from rag_middle.methods.siw import SIW

_ALONE = 1e-6  # of a row's weights, left beside the initial token's: float32 rounding


def document_density(
    attention: Tensor,
    layout: PromptLayout,
    top_share: float,
    tokens: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """How much more of each document is attended to than of all documents together.

    Args:
        attention: of the last prompt token over the prompt, `[l]`.
        layout: of the prompt.
        top_share: share of the prompt's tokens, by attention, that count as attended to.
        tokens: `document_tokens` of the documents, if at hand.

    Returns:
        `[D]`: a document's share of attended tokens minus that of all documents' tokens. Above
        zero the document is dense, below it is sparse; zero for a document on its own
        and for an empty one.
    """
    lengths, document_of = tokens or document_tokens(layout.document_lengths, attention.device)
    count = max(1, round(top_share * attention.shape[0]))
    attended = torch.zeros_like(attention, dtype=torch.long)
    attended.index_fill_(0, attention.topk(count).indices, 1)
    of_documents = attended[layout.prefix_tokens : layout.suffix_start]
    counts = torch.zeros_like(lengths).index_add_(0, document_of, of_documents)
    # Shares, not counts: a document is not dense for being long. Compared as whole numbers: the
    # rounding of a division must not decide about equal shares.
    total = lengths.sum()
    difference = counts * total - of_documents.sum() * lengths
    return difference / (lengths * total).clamp(min=1)


def attend_scaling_initial_token(
    method: SIW, context: AttentionContext, alphas: tuple[tuple[float, ...], ...]
) -> tuple[Tensor, Tensor | None]:
    """A layer's attention under SIW.

    Args:
        method: with its options.
        context: of the call.
        alphas: for the documents of each prompt; none for those of the areas in the prompt itself.
    """
    if not context.in_prompt:
        return context.proceed()  # generated tokens belong to no document
    call, token = context.call, method.token
    known = by_document(context, alphas, dtype=torch.float32)[:, 0, :, 0] if alphas else None
    context.store()
    factors = _found_factors(method, context) if known is None else known  # [b, n]
    first = context.layer.request.paddings(call.query.device) + token  # its column, [b]
    output, weight = context.attention.attend_and_weigh(call, token)
    if token:  # rows before it do not see it
        rows = torch.arange(weight.shape[2], device=weight.device)
        weight = weight.masked_fill((rows < first[:, None])[:, None], 0)
    step = ((factors - 1)[:, None] * weight).transpose(1, 2)[..., None]  # [b, n, h, 1]
    if method.ablation == "renormalised":
        total = 1 + step
        # A row that attends to nothing else keeps its weight there, for a factor of 0 too.
        alone = total < _ALONE
        total = total.masked_fill(alone, 1)
        step = step.masked_fill(alone, 0) / total
        output = output / total.to(output.dtype)
    value = value_at(call.value, first, output.shape[2])
    if method.ablation == "redistributed":
        of_keys, has_keys = _mean_of_key_tokens(method, context, first)
        value, step = value - of_keys, step * has_keys
    return output + step.to(output.dtype) * value, None


def _mean_of_key_tokens(
    method: SIW, context: AttentionContext, first: Tensor
) -> tuple[Tensor, Tensor]:
    """The value that every row's key tokens have in the mean, and whether it sees any.

    Returns:
        `[b, n, h, dv]` and `[b, n, 1, 1]`; key tokens weigh as much as the last token attends to
        them, those after a row and the initial token nothing.
    """
    attention = context.attention.last_token_weights(context.call)  # [b, n]
    attention = attention.scatter(1, first[:, None], 0)
    weights = torch.zeros_like(attention)
    for row, (padding, layout) in enumerate(context.layer.request.row_layouts()):
        count = max(1, round(method.top_share * layout.length))
        top = attention[row, padding:].topk(count)
        weights[row, padding + top.indices] = top.values
    values = context.call.value[:, :, : weights.shape[1]].float()  # [b, g, n, dv]
    sums = (weights[:, None, :, None] * values).cumsum(2)
    total = weights.cumsum(1)[:, None, :, None]
    means = torch.where(total > 0, sums / total.clamp_min(torch.finfo(total.dtype).tiny), 0)
    heads = context.call.query.shape[1] // values.shape[1]
    of_rows = means.repeat_interleave(heads, dim=1).transpose(1, 2)
    return of_rows.to(context.call.value.dtype), (total > 0).transpose(1, 2)


def value_at(values: Tensor, columns: Tensor, heads: int) -> Tensor:
    """Every row's value in one column, `[b, 1, h, dv]`.

    Args:
        values: `[b, g, N, dv]`.
        columns: `[b]`.
        heads: query heads `h`.
    """
    value = values[torch.arange(len(columns), device=columns.device), :, columns]  # [b, g, dv]
    return value.repeat_interleave(heads // value.shape[1], dim=1)[:, None]


def _found_factors(method: SIW, context: AttentionContext) -> Tensor:
    """Factor of every token, `[b, n]` in float32, by what the last prompt token attends to."""
    attention = context.attention.last_token_weights(context.call)  # [b, width]
    request, device = context.layer.request, attention.device
    # As float32 has them: what is beyond it is infinite.
    alphas = [method.alpha_dense, method.alpha_sparse]
    alphas = torch.tensor(alphas, dtype=torch.float32, device="cpu").tolist()
    whole = torch.ones(len(attention), context.stop, dtype=torch.float32, device=device)
    for row, (padding, layout) in enumerate(request.row_layouts()):
        if not layout.documents:
            continue
        tokens = request.shared(
            ("document tokens", layout, device),
            partial(document_tokens, layout.document_lengths, device),
        )
        density = document_density(attention[row, padding:], layout, method.top_share, tokens)
        factors = torch.ones_like(density, dtype=torch.float32)
        factors.masked_fill_(density > 0, alphas[0]).masked_fill_(density < 0, alphas[1])
        start, end = padding + layout.prefix_tokens, padding + layout.suffix_start
        whole[row, start:end] = factors[tokens[1]]
    return whole
