"""Logits and log-probabilities, for calibration and evaluation."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rag_middle.attention import applied, model_traits
from rag_middle.errors import UnsupportedGenerationError
from rag_middle.generation.branches import combined
from rag_middle.generation.document_cache import DocumentCache, begun, held
from rag_middle.generation.facts import device_of
from rag_middle.generation.turns import in_eval_mode, turn
from rag_middle.methods import Method
from rag_middle.tokens import TokenizedBatch, TokenizedPrompt

__all__ = ["continuation_log_probabilities", "next_token_logits", "prompt_logits"]


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
    known = None if all_positions else documents
    logits = _prefilled(model, branches, method, all_positions=all_positions, documents=known)
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
        cache = begun(documents, model, method, batch.prompts)
        with applied(model, method, batch.layouts, prefilled=held(cache)):
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
        known = begun(documents, model, method, batch.prompts)
        with applied(model, method, batch.layouts, prefilled=held(known)):
            forward = _Forward(model, batch)
            logits, cache = forward.prefill(all_positions=False, cache=known)
            # The last token of a continuation predicts nothing that is asked for.
            fed = forward.feed([ids[:-1] for ids in given], cache)
        rows = combined(method, torch.cat([logits[:, -1:], *fed], dim=1), counts)
        rows = rows.log_softmax(dim=-1)
    results = []
    for row, ids in zip(rows, continuations, strict=True):
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
        return not traits.mixed and bool(traits.layers or traits.adapter)

    def _call(self, ids: Tensor, cache: Any, options: dict[str, Any]) -> Any:
        options["past_key_values"] = cache
        self._mask = torch.cat([self._mask, torch.ones_like(ids)], dim=1)
        return self._forward(ids, options)

    def _forward(self, ids: Tensor, options: dict[str, Any]) -> Any:
        if "position_ids" in self._accepted:
            positions = (self._mask.cumsum(dim=1) - 1).clamp(min=0)
            options["position_ids"] = positions[:, -ids.shape[1] :]
        return self._model(
            input_ids=ids, attention_mask=self._mask, use_cache=True, return_dict=True, **options
        )
