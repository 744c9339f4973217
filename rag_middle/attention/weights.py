"""What a layer's attention puts on single keys: one row, one column, never the whole matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from rag_middle.attention.request import Request, join_rows
from rag_middle.attention.seam import AttentionCall, backend_name, base_attention
from rag_middle.attention.traits import LayerTraits
from rag_middle.ops.flash import Attended, flash_window
from rag_middle.ops.scores import as_factor, products, row_chunks

#: Scores held at once where their log-sum-exp is taken without a fused kernel.
_BLOCK_ELEMENTS = 1 << 22


class ModelAttention:
    """Attention of one layer as the model computes it, with what can be known of its weights.

    A method that attends in its own way offers the same under a subclass, so that one that changes
    weights goes with it.
    """

    def __init__(self, traits: LayerTraits, request: Request) -> None:
        self._traits = traits
        self._request = request

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        """Output `[b, n, h, dv]` of a call that has all keys and values, and weights if any."""
        return base_attention(call)

    def last_token_weights(self, call: AttentionCall) -> Tensor:
        """Attention of the last prompt token over the prompt, averaged over heads, `[b, width]`."""
        last = self._request.width - 1
        query, key = call.query[:, :, last : last + 1], call.key[:, :, : last + 1]
        padded = any(group.padding for group in self._request.groups)
        first = self._request.paddings(query.device) if padded else None
        return last_rows_attention(query, key, self._traits, padding=first)[:, :, 0].mean(1)

    def attend_and_weigh(self, call: AttentionCall, token: int = 0) -> tuple[Tensor, Tensor]:
        """Output `[b, n, h, dv]` of a whole prompt, and what every query gives to one key.

        Args:
            call: that begins the prompt, with all keys and values.
            token: 0-based token of every row's prompt, whose key it is.

        Returns:
            The output, and the weights `[b, h, n]` in float32. Those of padding and of queries
            before the key mean nothing.
        """
        output, weights, lse = self._with_lse(call)
        columns = self._request.paddings(call.query.device) + token  # [b]
        rows = torch.arange(columns.shape[0], device=columns.device)
        if weights is not None:
            # Advanced indices around a slice come out first: [b, h, n].
            return output, weights[rows, :, :, columns].float()
        assert lse is not None
        n, window = call.query.shape[2], self._traits.sliding_window
        score = attention_scores(call.query, call.key[rows, :, columns][:, :, None], self._traits)
        # Who does not see the key, padding among them, has no score of it in the sum.
        share = torch.exp((score[..., 0] - lse).clamp(max=0.0))
        padded = any(group.padding for group in self._request.groups)
        chunked = self._traits.attention_chunk is not None and call.mask is not None
        if not padded and window is None and not chunked:
            return output, share
        distance = torch.arange(n, device=columns.device)[None, :] - columns[:, None]
        visible = ~_hidden_at(distance, self._traits)
        if chunked:
            assert call.mask is not None
            seen = call.mask[rows, 0, :, columns]
            visible = visible & (seen if seen.dtype == torch.bool else seen == 0)
        return output, share * visible[:, None].float()

    def attend_biased(self, call: AttentionCall, bias: Tensor | None, stop: int) -> Tensor:
        """Output `[b, m, h, dv]` of the last tokens, with a bias on their scores: one fused call.

        A single token needs no mask of its own: keys it does not attend to are left out.

        Args:
            call: of the last `m` tokens, few of them, with all keys and values; its mask is not
                read.
            bias: on all columns so far, or more of them, `[b or 1, h or 1, m or 1, columns]` in the
                query's format, `-inf` on padding; ``None`` for no bias where no row is padded.
            stop: columns up to the tokens and with them.
        """
        traits, m = self._traits, call.query.shape[2]
        stored = min(stop, call.key.shape[2])  # a static cache is longer than its content
        window = traits.sliding_window
        reach = stored if window is None else min(stored, window + m - 1)
        mask = None if bias is None else bias[..., stop - reach : stop]
        if m > 1 or traits.attention_chunk is not None:
            hidden = self._hidden_from_last(call.query, reach, stop)
            mask = call.query.new_zeros(1, 1, 1, 1) if mask is None else mask
            mask = mask.masked_fill(hidden, -torch.inf)
        key, value = (x[:, :, stored - reach : stored] for x in (call.key, call.value))
        shortened = AttentionCall(call.module, call.query, key, value, mask, call.options)
        fused = traits.softcap is None and not traits.sinks
        # Backends of other names take no bias.
        return base_attention(shortened, backend="sdpa" if fused else "eager")[0]

    def _hidden_from_last(self, query: Tensor, reach: int, stop: int) -> Tensor:
        """Which of the last `reach` columns are hidden from tokens, `[b or 1, 1, m, reach]`."""
        m, device, chunk = query.shape[2], query.device, self._traits.attention_chunk
        columns = torch.arange(reach, device=device)
        distance = columns[reach - m :, None] - columns
        hidden = _hidden_at(distance, self._traits)[None]
        if chunk is not None:
            rows = torch.arange(stop - m, stop, device=device)
            positions = (rows - self._request.paddings(device)[:, None]).clamp(min=0)
            hidden = hidden | (distance > (positions % chunk)[..., None])
        return hidden[:, None]

    def _with_lse(self, call: AttentionCall) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Output, then weights `[b, h, n, n]` where they come for nothing, or the log-sum-exp."""
        traits, n = self._traits, call.query.shape[2]
        query, key = call.query, call.key[:, :, :n]
        # Eager attention makes the matrix anyway; no fused kernel knows soft-capping or sinks, and
        # none of ours chunks.
        plain = traits.softcap is None and not traits.sinks and traits.attention_chunk is None
        if plain and backend_name(call.module) != "eager":
            output, lse = self._fused(query, key, call.value[:, :, :n])
            return output, None, lse
        output, weights = base_attention(call)
        # Some models scale the output by the sink's share, and hand on weights without it. In half
        # precision weights are rounded: what one near 1 leaves for the others would be lost.
        if (
            weights is not None
            and weights.dtype == torch.float32
            and not traits.sinks
            and weights.shape[-1] == call.key.shape[2]
        ):
            return output, weights, None
        return output, None, self._lse_in_blocks(call)

    def _lse_in_blocks(self, call: AttentionCall) -> Tensor:
        """Log-sum-exp `[b, h, n]` of a prompt's scores, some queries at a time, in float32.

        It turns one score into one weight, ``a_ij = exp(s_ij - lse_i)``, without the matrix of all.
        """
        (b, h, n, _), traits = call.query.shape, self._traits
        query, key = as_factor(call.query), as_factor(call.key[:, :, :n]).contiguous()
        mask = call.mask if call.mask is not None and call.mask.ndim == 4 else None
        padding = self._request.paddings(query.device)[:, None, None]
        sinks: Tensor | None = call.options.get("s_aux")
        columns = torch.arange(n, device=query.device)
        lowest = torch.finfo(torch.float32).min  # and not -inf: rows of padding stay finite
        parts = []
        for start, stop in row_chunks(0, n, b * h * n, _BLOCK_ELEMENTS):
            scores = attention_scores(query[:, :, start:stop], key[:, :, :stop], traits)
            if mask is None:
                hidden = _hidden_at(columns[start:stop, None] - columns[:stop], traits)
                hidden = hidden | (columns[:stop] < padding)
                scores = scores.masked_fill(hidden[:, None], lowest)
            elif mask.dtype == torch.bool:
                scores = scores.masked_fill(~mask[:, :, start:stop, :stop], lowest)
            else:
                scores = scores + mask[:, :, start:stop, :stop]
            if sinks is not None:
                extra = sinks.float()[None, :, None, None].expand(b, h, stop - start, 1)
                scores = torch.cat((scores, extra), dim=-1)
            parts.append(scores.logsumexp(-1))
        return torch.cat(parts, dim=-1)

    def _fused(self, query: Tensor, key: Tensor, value: Tensor) -> Attended:
        """Output `[b, n, h, dv]` and log-sum-exp of a prompt, zero in the padding: no masks."""
        groups, scale = self._request.groups, self._traits.score_scale
        window = self._traits.sliding_window or query.shape[2]
        outputs, sums = [], []
        for group in groups:
            q, k, v = (group.take(x)[:, :, group.padding :] for x in (query, key, value))
            out, lse = flash_window(q, k, v, window, scale=scale)
            outputs.append(out)
            sums.append(lse[..., None])
        whole = join_rows(groups, outputs).transpose(1, 2)
        return Attended(whole, join_rows(groups, sums)[..., 0])


def last_rows_attention(
    query: Tensor,
    key: Tensor,
    traits: LayerTraits,
    *,
    padding: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention weights of the last tokens, as the layer's softmax has them.

    Args:
        query: of the last `m` tokens, `[b, h, m, d]`, rotated.
        key: of all tokens up to the last, `[b, g, n, d]`, rotated.
        traits: of the layer: window and soft-capping are applied.
        padding: left padding of every row, `[b]`.
        sinks: learned extra score per head, `[h]`, which takes its share.

    Returns:
        `[b, h, m, n]` in float32: keep `m` small.
    """
    m, n = query.shape[2], key.shape[2]
    scores = attention_scores(query, key, traits)
    if m > 1 or traits.sliding_window is not None or padding is not None:
        columns = torch.arange(n, device=key.device)
        hidden = _hidden_at(columns[n - m :, None] - columns, traits)[None, None]
        if padding is not None:
            hidden = hidden | (columns[None, :] < padding[:, None])[:, None, None]
        scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        extra = sinks.float()[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, extra), dim=-1)
    return scores.softmax(-1)[..., :n]


def _hidden_at(distance: Tensor, traits: LayerTraits) -> Tensor:
    """Which keys at these distances before a query are hidden from it; later ones are below 0."""
    hidden = distance < 0
    if traits.sliding_window is not None:
        hidden = hidden | (distance >= traits.sliding_window)
    return hidden


def attention_scores(query: Tensor, key: Tensor, traits: LayerTraits) -> Tensor:
    """Scores `[b, h, m, n]` in float32 of queries `[b, h, m, d]` and keys `[b, g, n, d]`."""
    b, h, m, d = query.shape
    g, n = key.shape[1], key.shape[2]
    grouped = as_factor(query.reshape(b * g, -1, d))
    score = products(grouped, as_factor(key.reshape(b * g, n, d))).view(b, h, m, n)
    score = score * traits.score_scale
    return score if traits.softcap is None else traits.softcap * torch.tanh(score / traits.softcap)
