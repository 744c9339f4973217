"""Forward passes that generate nothing: logits of prompts, log-probabilities of continuations."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from itertools import zip_longest
from math import isnan
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from rag_middle.attention import (
    applied,
    in_eval_mode,
    input_device,
    model_traits,
    modules_by_layer,
    puts_virtual_tokens,
    turn,
    use_kernels,
    waits_for_invocation,
)
from rag_middle.attention.seam import MODEL_CACHE
from rag_middle.errors import UnsupportedGenerationError
from rag_middle.generation.effect import acts_on
from rag_middle.generation.processors import combined, refuse_not_finite
from rag_middle.generation.requests import GenerationRequest, length_that_changes_frequencies
from rag_middle.generation.results import Score
from rag_middle.generation.shared_prefixes import prefilled_cache
from rag_middle.methods import Method, method_name
from rag_middle.methods.document_blocks.document_cache import DocumentCache
from rag_middle.tokens import TokenizedPrompt, padded


def cached_length(cache: DynamicCache | None) -> int:
    """Tokens (columns of the batch) whose keys and values the cache holds."""
    return 0 if cache is None else int(cache.get_seq_length())


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
            documents=request.documents,
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
    with use_kernels(request.kernels), turn(model), in_eval_mode(model):
        cache = prefilled_cache(request.documents, model, method, rows)
        with applied(model, method, rows, prefilled=cached_length(cache), prepared=True) as running:
            forward = _Forward(model, rows)
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
    documents: DocumentCache | None = None,
) -> Tensor:
    """Logits `[rows, n or 1, v]` of one pass over the prompts."""
    with turn(model), in_eval_mode(model):
        cache = None if all_positions else prefilled_cache(documents, model, method, prompts)
        with applied(model, method, prompts, prefilled=cached_length(cache), prepared=True):
            logits, _ = _Forward(model, prompts).prefill(all_positions=all_positions, cache=cache)
    return logits


def _arguments(model: PreTrainedModel) -> frozenset[str]:
    """What a forward pass takes, by name; also where a wrapper hands on what it does not name."""
    declared = inspect.signature(model.forward).parameters
    names = frozenset(declared)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in declared.values()):
        inside = (part for part in model.modules() if isinstance(part, PreTrainedModel))
        names |= frozenset(inspect.signature(next(inside, model).forward).parameters)
    # PEFT counts virtual tokens by itself, and warns of positions that it is given.
    return names - {"position_ids"} if puts_virtual_tokens(model) else names


class _Forward:
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
