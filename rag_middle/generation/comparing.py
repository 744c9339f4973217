"""Scores under several methods, each prompt read once for as many of them as allow it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from transformers import PreTrainedModel

from rag_middle.attention import can_share_prompts, model_traits
from rag_middle.generation import scoring
from rag_middle.generation.batching import in_groups, rows_of
from rag_middle.generation.document_cache import DocumentCache
from rag_middle.generation.effect import acts_on, method_name
from rag_middle.generation.preparing import PreparedPrompt
from rag_middle.generation.results import Score
from rag_middle.methods import Method

__all__ = ["scores", "scores_by_method"]

Ids = Sequence[Sequence[int]]


def scores(
    model: PreTrainedModel,
    prompts: Sequence[PreparedPrompt],
    continuations: Ids,
    method: Method,
    *,
    max_batch_size: int,
    documents: DocumentCache | None,
) -> list[Score]:
    """How likely each continuation of each prompt is under a method.

    Args:
        model: that runs.
        prompts: ready for the method.
        continuations: token ids, of each prompt.
        method: of the request.
        max_batch_size: rows per forward pass.
        documents: read already.
    """

    def run(group: list[int]) -> list[Score]:
        wanted = [continuations[index] for index in group]
        found = scoring.continuation_log_probabilities(
            model, [prompts[index].branches for index in group], wanted, method, documents
        )
        return _as_scores([prompts[index] for index in group], wanted, found, method)

    rows = rows_of(prompts, model, method, documents, max_batch_size)
    return in_groups(model, _sizes(prompts, continuations), max_batch_size, run, rows)


def scores_by_method(
    model: PreTrainedModel,
    prepared: Callable[[Method], list[PreparedPrompt]],
    continuations: Ids,
    methods: Sequence[Method],
    *,
    max_batch_size: int,
    documents: DocumentCache | None,
) -> list[list[Score]]:
    """`scores` under each of several methods, prompts read once for those that allow it.

    Args:
        model: as for `scores`, like `continuations`, `max_batch_size` and `documents`.
        prepared: prompts ready for a method; asked once for each, so that those of many methods
            are not held at a time.
        continuations: see there.
        methods: in any order.
        max_batch_size: see there.
        documents: see there.

    Returns:
        By method, in the order of the prompts.
    """
    found: dict[int, list[Score]] = {}
    sharing: dict[int, tuple[list[PreparedPrompt], list[int]]] = {}
    for index, method in enumerate(methods):
        prompts = prepared(method)
        changed = _last_tokens_changed(model, method, prompts)
        if changed is None:
            found[index] = scores(
                model,
                prompts,
                continuations,
                method,
                max_batch_size=max_batch_size,
                documents=documents,
            )
        else:
            sharing.setdefault(changed, (prompts, []))[1].append(index)
    for changed, (prompts, members) in sharing.items():
        several = [methods[index] for index in members]
        scored = _shared_scores(
            model, prompts, continuations, several, changed, max_batch_size=max_batch_size
        )
        found.update(zip(members, scored, strict=True))
    return [found[index] for index in range(len(methods))]


def _last_tokens_changed(
    model: PreTrainedModel, method: Method, prompts: Sequence[PreparedPrompt]
) -> int | None:
    """How many tokens at a prompt's end attend differently under a method.

    Returns:
        None where prompts cannot be read once for this and other methods: it changes what is
        before, or the whole of a prompt, or the model does not go on from what was read.
    """
    if method.arranges or method.combines or not can_share_prompts(model):
        return None
    tokens = tuple(prompt.tokens for prompt in prompts)
    changed = method.plan(tokens, model_traits(model)).last_tokens_changed
    if changed is None or any(len(prompt) <= changed for prompt in tokens):
        return None
    return changed


def _shared_scores(
    model: PreTrainedModel,
    prompts: Sequence[PreparedPrompt],
    continuations: Ids,
    methods: Sequence[Method],
    last_tokens: int,
    *,
    max_batch_size: int,
) -> list[list[Score]]:
    """`scores` under each of several methods, every prompt read once for all of them.

    What was read of one batch is dropped before the next. Numbers do not depend on which methods
    are scored together.

    Args:
        model: as for `scores`, like `prompts`, `continuations` and `max_batch_size`.
        prompts: see there.
        continuations: see there.
        methods: for which `_last_tokens_changed` says `last_tokens`.
        last_tokens: of a prompt, read under every method anew.
        max_batch_size: see there.

    Returns:
        By method, in the order of the prompts.
    """

    def run(group: list[int]) -> list[list[Score]]:
        wanted = [continuations[index] for index in group]
        members = [prompts[index] for index in group]
        tokens = [each.tokens for each in members]
        found = scoring.shared_log_probabilities(model, tokens, wanted, methods, last_tokens)
        by_method = [
            _as_scores(members, wanted, of_method, method)
            for of_method, method in zip(found, methods, strict=True)
        ]
        return [list(of_prompt) for of_prompt in zip(*by_method, strict=True)]

    sizes = _sizes(prompts, continuations)
    by_prompt = in_groups(model, sizes, max_batch_size, run, [1] * len(prompts))
    return [[of_prompt[index] for of_prompt in by_prompt] for index in range(len(methods))]


def _sizes(prompts: Sequence[PreparedPrompt], continuations: Ids) -> list[tuple[int, int]]:
    return [(len(p.tokens), len(ids)) for p, ids in zip(prompts, continuations, strict=True)]


def _as_scores(
    prompts: Sequence[PreparedPrompt],
    continuations: Ids,
    found: Sequence[tuple[tuple[float, ...], bool]],
    method: Method,
) -> list[Score]:
    return [
        Score(
            token_ids=tuple(ids),
            log_probabilities=log_probabilities,
            is_greedy=is_greedy,
            prompt_tokens=len(prompt.tokens),
            method=method_name(method),
            applied=acts_on(method, prompt.tokens.layout),
        )
        for prompt, ids, (log_probabilities, is_greedy) in zip(
            prompts, continuations, found, strict=True
        )
    ]
