"""Scores of continuations under one method, or several that read each prompt once together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isnan

from transformers import PreTrainedModel

from rag_middle.attention import can_share_prompts, model_traits
from rag_middle.generation import forward
from rag_middle.generation.batching import in_groups, rows_of
from rag_middle.generation.effect import acts_on
from rag_middle.generation.forward import TokenScores
from rag_middle.generation.processors import refuse_not_finite
from rag_middle.generation.prompts import PreparedPrompt
from rag_middle.generation.results import Score
from rag_middle.methods import Method, method_name
from rag_middle.methods.parallel_context.document_cache import DocumentCache

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
        documents: keys and values computed for earlier requests.
    """

    def run(group: list[int]) -> list[TokenScores]:
        branches = [prompts[index].branches for index in group]
        expected = [continuations[index] for index in group]
        return forward.continuation_log_probabilities(model, branches, expected, method, documents)

    rows = rows_of(prompts, model, method, documents, max_batch_size)
    sizes = _sizes(prompts, continuations)
    by_prompt = in_groups(model, sizes, max_batch_size, run, rows)
    return _as_scores(prompts, continuations, by_prompt, method)


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

    Numbers do not depend on which methods are scored together.

    Args:
        model: as for `scores`, like `continuations`, `max_batch_size` and `documents`.
        prepared: prompts ready for a method; asked once for each, so that those of many methods
            are not held at a time.
        methods: in any order.
        max_batch_size: see there. What was read of one batch is dropped before the next.

    Returns:
        By method, in the order of the prompts.
    """
    scored: dict[int, list[Score]] = {}
    # Methods that change the same number of last tokens only, with the prompts they share.
    sharing: dict[int, tuple[list[PreparedPrompt], list[int]]] = {}
    for index, method in enumerate(methods):
        prompts = prepared(method)
        last_tokens = _last_tokens_changed(model, method, prompts)
        if last_tokens is None:
            scored[index] = scores(
                model,
                prompts,
                continuations,
                method,
                max_batch_size=max_batch_size,
                documents=documents,
            )
        else:
            sharing.setdefault(last_tokens, (prompts, []))[1].append(index)
    for last_tokens, (prompts, indices) in sharing.items():
        together = [methods[index] for index in indices]
        sizes = _sizes(prompts, continuations)

        def run(
            group: list[int],
            prompts: Sequence[PreparedPrompt] = prompts,
            together: Sequence[Method] = together,
            last_tokens: int = last_tokens,
        ) -> list[tuple[TokenScores, ...]]:
            tokens = [prompts[index].tokens for index in group]
            expected = [continuations[index] for index in group]
            by_method = forward.shared_log_probabilities(
                model, tokens, expected, together, last_tokens
            )
            return list(zip(*by_method, strict=True))

        by_prompt = in_groups(model, sizes, max_batch_size, run, [1] * len(prompts))
        for column, index in enumerate(indices):
            of_method = [token_scores[column] for token_scores in by_prompt]
            scored[index] = _as_scores(prompts, continuations, of_method, methods[index])
    return [scored[index] for index in range(len(methods))]


def _last_tokens_changed(
    model: PreTrainedModel, method: Method, prompts: Sequence[PreparedPrompt]
) -> int | None:
    """How many tokens at a prompt's end attend differently under a method.

    Returns:
        None where prompts cannot be read once for this and other methods: it changes what is
        before, or the whole of a prompt, or the model does not go on from what was read.
    """
    if method.rewrites or method.arranges or method.combines or not can_share_prompts(model):
        return None
    tokens = tuple(prompt.tokens for prompt in prompts)
    last_tokens = method.plan(tokens, model_traits(model)).last_tokens_changed
    if last_tokens is None or any(len(prompt) <= last_tokens for prompt in tokens):
        return None
    return last_tokens


def _sizes(prompts: Sequence[PreparedPrompt], continuations: Ids) -> list[tuple[int, int]]:
    return [(len(p.tokens), len(ids)) for p, ids in zip(prompts, continuations, strict=True)]


def _as_scores(
    prompts: Sequence[PreparedPrompt],
    continuations: Ids,
    by_prompt: Sequence[TokenScores],
    method: Method,
) -> list[Score]:
    # NaN or infinite logits leave no log-probability; that of a token ruled out is -inf.
    if any(isnan(sum(tokens.log_probabilities)) for tokens in by_prompt):
        refuse_not_finite(method)
    return [
        Score(
            token_ids=tuple(ids),
            log_probabilities=tokens.log_probabilities,
            is_greedy=tokens.is_greedy,
            prompt_tokens=len(prompt.tokens),
            method=method_name(method),
            applied=acts_on(method, prompt.tokens.layout),
            kernels=tokens.kernels,
        )
        for prompt, ids, tokens in zip(prompts, continuations, by_prompt, strict=True)
    ]
