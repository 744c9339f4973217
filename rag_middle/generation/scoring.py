"""Logits and log-probabilities, for calibration and evaluation."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rag_middle.attention import applied, model_traits, modules_by_layer, reading
from rag_middle.errors import UnsupportedGenerationError
from rag_middle.generation.branches import combined
from rag_middle.generation.document_cache import DocumentCache
from rag_middle.generation.facts import device_of
from rag_middle.generation.prefill import begun, held
from rag_middle.generation.turns import in_eval_mode, turn
from rag_middle.methods import Method
from rag_middle.tokens import TokenizedBatch, TokenizedPrompt

__all__ = [
    "continuation_log_probabilities",
    "next_token_logits",
    "prompt_logits",
    "shared_log_probabilities",
]


def next_token_logits(model: PreTrainedModel, prompt: TokenizedPrompt, method: Method) -> Tensor:
    """Logits `[v]` in float32 after the prompt, under the method's plan alone."""
    return _prefilled(model, (prompt,), method, all_positions=False)[0, -1]


def prompt_logits(
    model: PreTrainedModel,
    branches: Sequence[TokenizedPrompt],
    method: Method,
    *,
    all_positions: bool,
    documents: DocumentCache | None = None,
) -> Tensor:
    """Next-token logits `[v]` after the prompt, or `[l, v]` after each of its tokens; float32.

    Args:
        model: that runs.
        branches: what the method's forward passes read.
        method: of the request.
        all_positions: after every token.
        documents: read already; not for all positions.

    Raises:
        UnsupportedGenerationError: all positions of a method that combines several passes.
    """
    if all_positions and method.combines:
        raise UnsupportedGenerationError(
            f"{method.name} combines several forward passes, whose prompts differ: only the logits "
            "after the whole prompt exist. Leave all_positions out."
        )
    logits = _prefilled(model, branches, method, all_positions=all_positions, documents=documents)
    return logits[0] if all_positions else combined(method, logits, [len(branches)])[0, -1]


@torch.no_grad()
def _prefilled(
    model: PreTrainedModel,
    prompts: Sequence[TokenizedPrompt],
    method: Method,
    *,
    all_positions: bool,
    documents: DocumentCache | None = None,
) -> Tensor:
    """Logits `[rows, n or 1, v]` of one pass over the prompts."""
    batch = TokenizedBatch(tuple(prompts))
    with turn(model), in_eval_mode(model):
        cache = None if all_positions else begun(model, method, batch, documents=documents)
        with applied(model, method, batch.prompts, prefilled=held(cache)):
            logits, _ = _Forward(model, batch).prefill(all_positions=all_positions, cache=cache)
    return logits


@torch.no_grad()
def continuation_log_probabilities(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[TokenizedPrompt]],
    continuations: Sequence[Sequence[int]],
    method: Method,
    documents: DocumentCache | None = None,
) -> list[tuple[tuple[float, ...], bool]]:
    """Log-probability of each continuation token, and whether all are the likeliest ones.

    The prompts, each with its branches, go through the model once, left-padded, and leave a cache;
    then all continuation tokens at once, as if they had been generated.
    """
    batch = TokenizedBatch(tuple(branch for branches in prompts for branch in branches))
    counts = [len(branches) for branches in prompts]
    given = [ids for ids, count in zip(continuations, counts, strict=True) for _ in range(count)]
    with turn(model), in_eval_mode(model):
        known = begun(model, method, batch, documents=documents)
        rows = combined(method, _continued(model, batch, given, method, known), counts)
        return _told(rows, continuations)


@torch.no_grad()
def shared_log_probabilities(
    model: PreTrainedModel,
    prompts: Sequence[TokenizedPrompt],
    continuations: Sequence[Sequence[int]],
    methods: Sequence[Method],
    last_tokens: int,
) -> list[list[tuple[tuple[float, ...], bool]]]:
    """`continuation_log_probabilities` under each of several methods, prompts read once for all.

    Args:
        model: that runs; see `can_share_prompts`.
        prompts: of one batch, each longer than `last_tokens`.
        continuations: of each prompt.
        methods: that change the attention of the prompts' `last_tokens` last tokens only
            (`AttentionPlan.last_tokens_changed`).
        last_tokens: of each prompt, read under each method anew.

    Returns:
        By method what there is by prompt.
    """
    batch = TokenizedBatch(tuple(prompts))
    results = []
    with turn(model), in_eval_mode(model):
        forward = _Forward(model, batch)
        with reading(model) as states:
            forward.read_ahead(last_tokens)
        for method in methods:
            plan = method.plan(batch.prompts, model_traits(model))
            known = states.cached_under(plan, batch.layouts)
            logits = _continued(model, batch, continuations, method, known)
            results.append(_told(logits, continuations))
    return results


def _continued(
    model: PreTrainedModel,
    batch: TokenizedBatch,
    continuations: Sequence[Sequence[int]],
    method: Method,
    known: Any,
) -> Tensor:
    """Logits `[rows, m, v]` before each token of the continuations; `known` is a cache or None."""
    with applied(model, method, batch.prompts, prefilled=held(known)):
        forward = _Forward(model, batch)
        logits, cache = forward.prefill(all_positions=False, cache=known)
        # The last token of a continuation predicts nothing that is asked for.
        fed = forward.feed([ids[:-1] for ids in continuations], cache)
    return torch.cat([logits[:, -1:], *fed], dim=1)


def _told(
    logits: Tensor, continuations: Sequence[Sequence[int]]
) -> list[tuple[tuple[float, ...], bool]]:
    """Log-probability of each token of each continuation, and whether all are the likeliest."""
    results = []
    for row, ids in zip(logits.log_softmax(dim=-1), continuations, strict=True):
        wanted = torch.tensor(ids, device=row.device)
        seen = row[: len(ids)]
        found = seen.gather(1, wanted[:, None])[:, 0]
        greedy = bool((seen.argmax(dim=-1) == wanted).all())
        results.append((tuple(found.tolist()), greedy))
    return results


class _Forward:
    """Forward passes of one request: masks and positions of a left-padded batch."""

    def __init__(self, model: PreTrainedModel, batch: TokenizedBatch) -> None:
        self._model = model
        self._ids, self._mask = batch.padded(0, device=device_of(model))
        self._accepted = inspect.signature(model.forward).parameters

    def prefill(self, *, all_positions: bool, cache: Any = None) -> tuple[Tensor, Any]:
        """Logits `[b, n or 1, v]` in float32, and the cache, which may hold a part already."""
        options: dict[str, Any] = {}
        if not all_positions and "logits_to_keep" in self._accepted:
            options["logits_to_keep"] = 1
        if cache is not None:
            options["past_key_values"] = cache
        output = self._forward(self._ids[:, held(cache) :], options)
        logits = output.logits if all_positions else output.logits[:, -1:]
        return logits.float(), output.get("past_key_values")

    def read_ahead(self, rest: int) -> None:
        """Run all columns but the last `rest`, for whoever watches."""
        ids, mask = self._ids[:, :-rest], self._mask[:, :-rest]
        options: dict[str, Any] = {"logits_to_keep": 1}
        options = {name: each for name, each in options.items() if name in self._accepted}
        self._run(ids, mask, use_cache=False, **options)

    def feed(self, continuations: Sequence[Sequence[int]], cache: Any) -> list[Tensor]:
        """Logits after continuation tokens, `[b, m, v]` in float32, in pieces along `m`."""
        # Shorter ones are filled up on the right, where no token of theirs looks.
        columns = list(zip_longest(*continuations, fillvalue=0))
        if not columns:
            return []
        tokens = torch.tensor(columns, device=self._ids.device).T
        pieces = (tokens,) if self._takes_many() else tokens.split(1, dim=1)
        return [self._call(piece, cache, {}).logits.float() for piece in pieces]

    def _takes_many(self) -> bool:
        """Whether several tokens may follow a cache at once: linear attention takes one."""
        traits = model_traits(self._model)
        return not traits.mixed and bool(modules_by_layer(self._model, traits))

    def _call(self, ids: Tensor, cache: Any, options: dict[str, Any]) -> Any:
        options["past_key_values"] = cache
        self._mask = torch.cat([self._mask, torch.ones_like(ids)], dim=1)
        return self._forward(ids, options)

    def _forward(self, ids: Tensor, options: dict[str, Any]) -> Any:
        return self._run(ids, self._mask, use_cache=True, **options)

    def _run(self, ids: Tensor, mask: Tensor, **options: Any) -> Any:
        if "position_ids" in self._accepted:
            positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
            options["position_ids"] = positions[:, -ids.shape[1] :]
        return self._model(input_ids=ids, attention_mask=mask, return_dict=True, **options)
