"""Attention of one token to spans of its keys, score by score, from the definition."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rag_middle.ops.spans import Span


def naive_spans(
    rows: Sequence[Sequence[Span]], q: Tensor, far: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    """Output `[b, h, 1, dv]` and log-sum-exp `[b, h, 1]`: scores of a span become its mass's."""
    (b, h, _, d), (g, count) = q.shape, k.shape[1:3]
    out, lse = torch.zeros(b, h, 1, v.shape[-1]), torch.zeros(b, h, 1)
    q, far, k, v = (x.double().cpu() for x in (q, far, k, v))
    for row, its in enumerate(rows):
        for head in range(h):
            group = head // (h // g)
            logits, read = [], []
            for span in its:
                begin, end = (x + count + 1 if x < 0 else x for x in (span.begin, span.end))
                inside = range(max(begin, span.least, 0), end)
                if inside:
                    keys = k[row, group, inside, span.far * d : (span.far + 1) * d]
                    scores = span.scale * (keys @ (far if span.far else q)[row, head, 0])
                    whole = scores.logsumexp(0)
                    logits.append(scores - whole + span.exponent * whole + span.log_weight)
                    read += inside
            every = torch.cat(logits)
            out[row, head, 0] = every.softmax(0) @ v[row, group, read]
            lse[row, head, 0] = every.logsumexp(0)
    return out, lse
