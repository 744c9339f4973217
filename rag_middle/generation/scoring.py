"""Scores of continuations under one method, or several that read each prompt once together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isnan

from transformers import PreTrainedModel

from rag_middle.attention import can_share_prompts, model_traits
from rag_middle.generation.batching import in_groups, rows_of
from rag_middle.generation.effect import acts_on
from rag_middle.generation.forward import TokenScores, continuation_scores
from rag_middle.generation.processors import refuse_not_finite
from rag_middle.generation.prompts import PreparedPrompt
from rag_middle.generation.results import Score
from rag_middle.methods import Method, method_name
from rag_middle.methods.parallel_context.document_cache import DocumentCache

Ids = Sequence[Sequence[int]]


def scores_by_method(
    model: PreTrainedModel,
    prepared: Callable[[Method], list[PreparedPrompt]],
    continuations: Ids,
    methods: Sequence[Method],
    *,
    max_batch_size: int,
    documents: DocumentCache | None,
) -> list[list[Score]]:
    """How likely each continuation is under each method; prompts are read once where that is right.

    Numbers do not depend on which methods are scored together.

    Args:
        model: that runs.
        prepared: prompts ready for a method; asked once for each, so that those of many methods
            are not held at a time.
        continuations: token ids, of each prompt.
        methods: in any order.
        max_batch_size: rows per forward pass. What was read of one batch is dropped before the
            next.
        documents: keys and values computed for earlier requests.

    Returns:
        By method, in the order of the prompts.
    """
    scores: dict[int, list[Score]] = {}

    def score(
        prompts: Sequence[PreparedPrompt], indices: Sequence[int], last_tokens: int | None = None
    ) -> None:
        """Score the methods of these indices, for which prompts are prepared alike."""
        together = [methods[index] for index in indices]

        def run(group: list[int]) -> list[list[TokenScores]]:
            return continuation_scores(
                model,
                [prompts[index].branches for index in group],
                [continuations[index] for index in group],
                together,
                last_tokens=last_tokens,
                documents=documents,
            )

        sizes = [(len(p.tokens), len(ids)) for p, ids in zip(prompts, continuations, strict=True)]
        rows = rows_of(prompts, model, together[0], documents, max_batch_size)
        by_prompt = in_groups(model, sizes, max_batch_size, run, rows)
        for column, index in enumerate(indices):
            of_method = [by_method[column] for by_method in by_prompt]
            scores[index] = _as_scores(prompts, continuations, of_method, methods[index])

    # Methods that change the same number of last tokens only, with the prompts they share.
    sharing: dict[int, tuple[list[PreparedPrompt], list[int]]] = {}
    for index, method in enumerate(methods):
        prompts = prepared(method)
        last_tokens = _last_tokens_changed(model, method, prompts)
        if last_tokens is None:
            score(prompts, [index])
        else:
            sharing.setdefault(last_tokens, (prompts, []))[1].append(index)
    for last_tokens, (prompts, indices) in sharing.items():
        score(prompts, indices, last_tokens)
    return [scores[index] for index in range(len(methods))]


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
