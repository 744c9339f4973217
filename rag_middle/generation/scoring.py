"""How likely continuations are under a method."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

from transformers import PreTrainedModel

from rag_middle.generation.batching import in_groups, rows_of
from rag_middle.generation.effect import acts_on
from rag_middle.generation.forward import TokenScores, continuation_scores
from rag_middle.generation.processors import refuse_not_finite
from rag_middle.generation.prompts import PreparedPrompt
from rag_middle.generation.results import Score
from rag_middle.methods import Method, method_name
from rag_middle.methods.parallel_context.document_cache import DocumentCache


def scores(
    model: PreTrainedModel,
    prompts: Sequence[PreparedPrompt],
    continuations: Sequence[Sequence[int]],
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
        return continuation_scores(model, branches, expected, method, documents)

    sizes = [(len(p.tokens), len(ids)) for p, ids in zip(prompts, continuations, strict=True)]
    rows = rows_of(prompts, model, method, documents, max_batch_size)
    by_prompt = in_groups(model, sizes, max_batch_size, run, rows)
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
