"""Forward passes over a left-padded batch: its prompts, then tokens after them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from rag_middle.attention import (
    input_device,
    model_traits,
    modules_by_layer,
    puts_virtual_tokens,
    waits_for_invocation,
)
from rag_middle.attention.seam import MODEL_CACHE
from rag_middle.errors import UnsupportedGenerationError
from rag_middle.generation.requests import length_that_changes_frequencies
from rag_middle.tokens import TokenizedPrompt, padded


def cached_length(cache: DynamicCache | None) -> int:
    """Tokens (columns of the batch) whose keys and values the cache holds."""
    return 0 if cache is None else int(cache.get_seq_length())


def _arguments(model: PreTrainedModel) -> frozenset[str]:
    """What a forward pass takes, by name; also where a wrapper hands on what it does not name."""
    declared = inspect.signature(model.forward).parameters
    names = frozenset(declared)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in declared.values()):
        inside = (part for part in model.modules() if isinstance(part, PreTrainedModel))
        names |= frozenset(inspect.signature(next(inside, model).forward).parameters)
    # PEFT counts virtual tokens by itself, and warns of positions that it is given.
    return names - {"position_ids"} if puts_virtual_tokens(model) else names


class Forward:
    """Forward passes of one request: masks and positions of a left-padded batch."""

    def __init__(self, model: PreTrainedModel, prompts: Sequence[TokenizedPrompt]) -> None:
        self._model = model
        self._ids, self._mask = padded(prompts, 0, input_device(model))
        self._accepted = _arguments(model)

    def prefill(self, *, all_positions: bool, cache: Any = None) -> tuple[Tensor, Any]:
        """Logits `[b, n or 1, v]` in float32, and the cache, which may hold a part already."""
        options: dict[str, Any] = {}
        if not all_positions and "logits_to_keep" in self._accepted:
            options["logits_to_keep"] = 1
        if cache is not None:
            options[MODEL_CACHE] = cache
        ids = self._ids[:, cached_length(cache) :]
        output = self._run(ids, self._mask, use_cache=True, **options)
        logits = output.logits if all_positions else output.logits[:, -1:]
        return logits.float(), output.get(MODEL_CACHE)

    def feed(self, continuations: Sequence[Sequence[int]], cache: Any) -> list[Tensor]:
        """Logits after continuation tokens, `[b, m, v]` in float32, in pieces along `m`."""
        # Shorter ones are filled up on the right, where no token of theirs looks.
        columns = list(zip_longest(*continuations, fillvalue=0))
        if not columns:
            return []
        cached = cache.get_seq_length() if hasattr(cache, "get_seq_length") else 0
        if isinstance(cached, int) and cached > self._mask.shape[1]:
            raise UnsupportedGenerationError(
                f"The model put {cached - self._mask.shape[1]} tokens before the prompt (prompt "
                "tuning, prefix tuning) and would put them before the continuation again: it "
                "cannot score more than one token. generate() and logits() work."
            )
        if waits_for_invocation(self._model):
            raise UnsupportedGenerationError(
                "An activated LoRA finds its invocation in each pass, and a continuation is read "
                "in one of its own: it cannot score more than one token. generate() and logits() "
                "work."
            )
        tokens = torch.tensor(columns, device=self._ids.device).T
        traits = model_traits(self._model)
        # Linear attention takes one token at a time after a cache. Under dynamic NTK each has the
        # frequencies of the length so far, as in generation.
        takes_many = (
            not traits.mixed
            and "dynamic" not in (traits.rope_type or "")
            and bool(modules_by_layer(self._model, traits))
        )
        # LongRoPE has frequencies for up to a length, and others beyond it.
        ahead = length_that_changes_frequencies(self._model) - self._mask.shape[1]
        if not takes_many:
            pieces = tokens.split(1, dim=1)
        elif 0 < ahead < tokens.shape[1]:
            pieces = tokens.tensor_split([int(ahead)], dim=1)
        else:
            pieces = (tokens,)
        logits = []
        for piece in pieces:
            self._ids = torch.cat([self._ids, piece], dim=1)
            self._mask = torch.cat([self._mask, torch.ones_like(piece)], dim=1)
            if takes_many and self._begins_anew(cache):
                keep = piece.shape[1]
                options = {"logits_to_keep": keep} if "logits_to_keep" in self._accepted else {}
                output = self._run(self._ids, self._mask, use_cache=True, **options)
                logits.append(output.logits[:, -keep:].float())
            else:
                output = self._run(piece, self._mask, use_cache=True, **{MODEL_CACHE: cache})
                logits.append(output.logits.float())
        return logits

    def _begins_anew(self, cache: Any) -> bool:
        """Whether generation would drop the cache here, as Phi-3's does beyond a length."""
        if self._mask.shape[1] <= length_that_changes_frequencies(self._model):
            return False
        untyped: Any = self._model
        prepared = untyped.prepare_inputs_for_generation(
            self._ids,
            attention_mask=self._mask,
            next_sequence_length=1,
            use_cache=True,
            **{MODEL_CACHE: cache},
        )
        return prepared.get(MODEL_CACHE) is None

    def _run(self, ids: Tensor, mask: Tensor, **options: Any) -> Any:
        if "position_ids" in self._accepted:
            positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
            options["position_ids"] = positions[:, -ids.shape[1] :]
        return self._model(input_ids=ids, attention_mask=mask, return_dict=True, **options)
