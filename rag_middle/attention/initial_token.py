"""Attention whose weight on the initial token is rescaled per document (SIW).

``out_i += (alpha_i - 1) a_i0 v_0`` with ``a_i0 = exp(s_i0 - lse_i)``: one score and the log-sum-exp
per row, never the matrix of weights.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rag_middle.attention.plan import InitialTokenScaling, OnlineAreas
from rag_middle.attention.request import Request
from rag_middle.attention.seam import AttentionCall, backend_name, base_attention
from rag_middle.attention.traits import LayerTraits
from rag_middle.ops.areas import document_density
from rag_middle.ops.lse import attention_with_lse, logsumexp_rows

__all__ = ["attend_and_reweight", "attention_scores", "reweighted", "token_factors"]


def attend_and_reweight(
    call: AttentionCall,
    scaling: InitialTokenScaling | OnlineAreas,
    traits: LayerTraits,
    request: Request,
) -> tuple[Tensor, Tensor | None]:
    """The call's attention with rescaled initial-token weights: output `[b, n, h, dv]`."""
    first = request.paddings(call.query.device)  # [b], column of each row's initial token
    factors = token_factors(
        scaling, lambda: _last_attention(call, traits, request, first), request, call.query
    )
    output, weight = _output_and_initial_weight(call, traits, request, first)
    return reweighted(output, weight, call.value, factors, first), None


def reweighted(
    output: Tensor, weight: Tensor, values: Tensor, factors: Tensor, first: Tensor
) -> Tensor:
    """``out_i + (alpha_i - 1) a_i0 v_0``.

    Args:
        output: of the attention, `[b, n, h, dv]`.
        weight: of the initial token, `[b, h, n]`.
        values: `[b, g, N, dv]`.
        factors: ``alpha`` of every token, `[b, n]`.
        first: column of each row's initial token, `[b]`.
    """
    rows = torch.arange(first.shape[0], device=first.device)
    value = values[rows, :, first]  # [b, g, dv]
    value = value.repeat_interleave(output.shape[2] // value.shape[1], dim=1)
    step = ((factors - 1)[:, :, None] * weight.transpose(1, 2)).to(output.dtype)  # [b, n, h]
    return output + step[..., None] * value[:, None]


def token_factors(
    scaling: InitialTokenScaling | OnlineAreas,
    last_attention: Callable[[], Tensor],
    request: Request,
    query: Tensor,
) -> Tensor:
    """Factor of every token of a call, `[b, n]` in float32; 1 outside the documents.

    Args:
        scaling: the plan's.
        last_attention: gives the last prompt token's attention over the prompt's columns, averaged
            over heads, `[b, width]`; asked only where areas are found online.
        request: of the call.
        query: of the call, `[b, h, n, d]`.
    """
    by_document = _by_document(scaling, last_attention, request, query)
    return _token_factors(by_document, request, query.shape[2])


def _by_document(
    scaling: InitialTokenScaling | OnlineAreas,
    last_attention: Callable[[], Tensor],
    request: Request,
    query: Tensor,
) -> list[Tensor]:
    """One factor per document, float32 `[D]`, for every batch row."""
    if isinstance(scaling, InitialTokenScaling):
        repeats = query.shape[0] // len(request.layouts)
        by_prompt = [torch.tensor(factors, device=query.device) for factors in scaling.factors]
        return [by_prompt[row // repeats] for row in range(query.shape[0])]
    attention = last_attention()
    densities = [
        document_density(attention[row, padding:], layout, scaling.top_share)
        if layout.documents
        else attention.new_zeros(0)
        for row, (padding, layout) in enumerate(request.row_layouts())
    ]
    return [
        1.0 + (scaling.alpha_dense - 1) * (density > 0) + (scaling.alpha_sparse - 1) * (density < 0)
        for density in densities
    ]


def _last_attention(
    call: AttentionCall, traits: LayerTraits, request: Request, first: Tensor
) -> Tensor:
    """Attention of the last prompt token, averaged over heads, `[b, width]`."""
    last = request.width - 1
    score = attention_scores(call.query[:, :, last : last + 1], call.key[:, :, : last + 1], traits)
    columns = torch.arange(last + 1, device=call.query.device)
    hidden = columns[None, :] < first[:, None]
    if traits.sliding_window is not None:
        hidden = hidden | (last - columns >= traits.sliding_window)[None]
    return score[:, :, 0].masked_fill(hidden[:, None], float("-inf")).softmax(-1).mean(1)


def _token_factors(by_document: list[Tensor], request: Request, n: int) -> Tensor:
    """Factor of every token, `[b, n]` in float32; 1 outside the documents."""
    rows = []
    for factors, (padding, layout) in zip(by_document, request.row_layouts(), strict=True):
        row = factors.new_ones(n, dtype=torch.float32)
        if layout.documents:
            lengths = torch.tensor(layout.document_lengths, device=factors.device)
            start = padding + layout.prefix_tokens
            row[start : start + layout.document_tokens] = factors.repeat_interleave(
                lengths, output_size=layout.document_tokens
            )
        rows.append(row)
    return torch.stack(rows)


def _output_and_initial_weight(
    call: AttentionCall, traits: LayerTraits, request: Request, first: Tensor
) -> tuple[Tensor, Tensor]:
    """Output `[b, n, h, dv]` and weight of the initial token `[b, h, n]` in float32."""
    query, key = call.query, call.key[:, :, : call.query.shape[2]]
    # sdpa on CPU gives the log-sum-exp for free; its kernel knows neither soft-capping nor sinks.
    plain = traits.softcap is None and not traits.sinks
    if (
        backend_name(call.module) == "sdpa"
        and plain
        and query.device.type == "cpu"
        and key.shape[2] == call.key.shape[2]
        and query.shape[-1] == call.value.shape[-1]
    ):
        output, lse = attention_with_lse(
            query, key, call.value, mask=call.mask, scale=traits.score_scale
        )
        output = output.transpose(1, 2)
    else:
        output, weights = base_attention(call)
        if weights is not None and weights.shape[-1] == call.key.shape[2]:
            rows = torch.arange(first.shape[0], device=first.device)
            # Advanced indices around a slice come out first: [b, h, n].
            return output, weights[rows, :, :, first].float()
        lse = logsumexp_rows(
            query,
            key,
            mask=call.mask,
            scale=traits.score_scale,
            softcap=traits.softcap,
            sinks=call.options.get("s_aux"),
            window=traits.sliding_window,
            padding=first,
        )
    score = _initial_scores(query, key, traits, first)
    # Left of the initial token there are only padding rows; their weight is never used.
    return output, torch.exp((score - lse).clamp(max=0.0)) * _visible(call, traits, first)


def _initial_scores(query: Tensor, key: Tensor, traits: LayerTraits, first: Tensor) -> Tensor:
    """Scores of every query against the initial token, `[b, h, n]` in float32."""
    rows = torch.arange(query.shape[0], device=first.device)
    return attention_scores(query, key[rows, :, first][:, :, None], traits)[..., 0]


def attention_scores(query: Tensor, key: Tensor, traits: LayerTraits) -> Tensor:
    """Scores `[b, h, m, n]` in float32 of queries `[b, h, m, d]` and keys `[b, g, n, d]`."""
    b, h, m, d = query.shape
    g, n = key.shape[1], key.shape[2]
    grouped = query.float().reshape(b, g, -1, d)
    score = torch.matmul(grouped, key.float().transpose(-1, -2)).view(b, h, m, n)
    score = score * traits.score_scale
    return score if traits.softcap is None else traits.softcap * torch.tanh(score / traits.softcap)


def _visible(call: AttentionCall, traits: LayerTraits, first: Tensor) -> Tensor:
    """Whether each query sees the initial token at all, `[b, 1, n]`."""
    n = call.query.shape[2]
    distance = torch.arange(n, device=first.device)[None, :] - first[:, None]
    visible = distance >= 0
    if traits.sliding_window is not None:
        visible = visible & (distance < traits.sliding_window)
    return visible[:, None].float()
