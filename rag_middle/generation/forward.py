"""Forward passes that generate nothing: logits of prompts, log-probabilities of continuations."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rag_middle.attention import (
    applied,
    in_eval_mode,
    locked,
    use_kernels,
)
from rag_middle.errors import UnsupportedGenerationError
from rag_middle.generation.effect import acts_on
from rag_middle.generation.passes import Forward, cached_length
from rag_middle.generation.processors import combined, refuse_not_finite
from rag_middle.generation.requests import GenerationRequest
from rag_middle.generation.results import Score
from rag_middle.generation.shared_prefixes import prefilled_cache
from rag_middle.methods import Method, method_name
from rag_middle.methods.document_blocks.document_cache import DocumentCache
from rag_middle.tokens import TokenizedPrompt


def next_token_logits(model: PreTrainedModel, prompt: TokenizedPrompt, method: Method) -> Tensor:
    """Logits `[v]` in float32 after the prompt, under the method's plan alone."""
    return _prefill_logits(model, (prompt,), method, all_positions=False)[0, -1]


def prompt_logits(
    model: PreTrainedModel, request: GenerationRequest, *, all_positions: bool
) -> Tensor:
    """Next-token logits `[v]` after the only prompt, or `[l, v]` after each of its tokens; float32.

    Raises:
        UnsupportedGenerationError: all positions of a method that combines several passes.
    """
    method = request.method
    if all_positions and method.combines:
        raise UnsupportedGenerationError(
            f"{method.name} combines several forward passes, whose prompts differ: only the logits "
            "after the whole prompt exist. Leave all_positions out."
        )
    with use_kernels(request.kernels):
        logits = _prefill_logits(
            model,
            request.rows,
            method,
            all_positions=all_positions,
            document_cache=request.document_cache,
        )
    return logits[0] if all_positions else combined(method, logits, request.branches)[0, -1]


@torch.no_grad()
def continuation_scores(model: PreTrainedModel, request: GenerationRequest) -> list[Score]:
    """How likely each prompt's continuation is under the method.

    The prompts, each with its branches, go through the model once, left-padded, and leave a KV
    cache; then all continuation tokens at once, as if they had been generated.
    """
    method, rows, branches = request.method, request.rows, request.branches
    # The last token of a continuation predicts nothing that is asked for.
    read = [
        ids[:-1]
        for ids, count in zip(request.continuations, branches, strict=True)
        for _ in range(count)
    ]
    with use_kernels(request.kernels), locked(model), in_eval_mode(model):
        cache = prefilled_cache(request.document_cache, model, method, rows)
        with applied(model, method, rows, prefilled=cached_length(cache), prepared=True) as running:
            forward = Forward(model, rows)
            logits, cache = forward.prefill(all_positions=False, cache=cache)
            logits = torch.cat([logits[:, -1:], *forward.feed(read, cache)], dim=1)
        logits = combined(method, logits, branches)
    results = []
    for prompt, row, ids in zip(
        request.prompts, logits.log_softmax(dim=-1), request.continuations, strict=True
    ):
        expected = torch.tensor(ids, device=row.device)
        predicted = row[: len(ids)]
        log_probabilities = predicted.gather(1, expected[:, None])[:, 0].tolist()
        # NaN or infinite logits leave no log-probability; that of a token ruled out is -inf.
        if isnan(sum(log_probabilities)):
            refuse_not_finite(method)
        results.append(
            Score(
                token_ids=tuple(ids),
                log_probabilities=tuple(log_probabilities),
                is_greedy=bool((predicted.argmax(dim=-1) == expected).all()),
                prompt_tokens=len(prompt.tokens),
                method=method_name(method),
                applied=acts_on(method, prompt.tokens.layout),
                kernels=running.kernels_used,
            )
        )
    return results


@torch.no_grad()
def _prefill_logits(
    model: PreTrainedModel,
    prompts: Sequence[TokenizedPrompt],
    method: Method,
    *,
    all_positions: bool,
    document_cache: DocumentCache | None = None,
) -> Tensor:
    """Logits `[rows, n or 1, v]` of one pass over the prompts."""
    with locked(model), in_eval_mode(model):
        cache = None if all_positions else prefilled_cache(document_cache, model, method, prompts)
        with applied(model, method, prompts, prefilled=cached_length(cache), prepared=True):
            logits, _ = Forward(model, prompts).prefill(all_positions=all_positions, cache=cache)
    return logits
