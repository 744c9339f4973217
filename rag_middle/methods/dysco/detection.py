"""Find a model's retrieval heads, by what they attend to while a needle is copied.

In the manner of Wu et al. (arXiv:2404.15574): tokens that stand nowhere else, the needle, are put
into a row of other tokens; after it the needle begins again. A retrieval head attends most to the
needle's next token, the one to be copied. Prompts here are of random tokens, so that any model can
be asked without data or a tokenizer; the model is told what to copy by the needle's own beginning,
and the needle is fed, whatever the model would have said.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rag_middle.attention import (
    input_device,
    last_token_attention,
    model_traits,
    vocabulary_size,
)
from rag_middle.errors import MethodConfigError
from rag_middle.methods.rules import whole


def retrieval_heads(
    model: PreTrainedModel, count: int = 16, **needles: int
) -> tuple[tuple[int, int], ...]:
    """The heads that most often attend to what is to be copied, best first.

    Args:
        model: left as it is found.
        count: of the heads; the DySCO authors take 16, of models of 1000 heads or so.
        needles: options of `retrieval_scores`.

    Returns:
        Pairs of 0-based layer and head, for `DySCO(heads=...)`. Heads that never did are left out.

    Raises:
        MethodConfigError: numbers that make no sense, or no head ever attended to a needle.
        UnsupportedArchitectureError: the attention layers cannot be reached.
    """
    whole(1)("retrieval_heads: count", count)
    scores = retrieval_scores(model, **needles)
    layers, heads = sorted(model_traits(model).layers), scores.shape[1]
    order = scores.flatten().argsort(descending=True, stable=True).tolist()
    best = [index for index in order[:count] if scores.flatten()[index] > 0]
    if not best:
        raise MethodConfigError(
            "No head of this model ever attends to the token that it is to copy: it has no "
            "retrieval heads, or prompt_tokens is more than it was made for."
        )
    return tuple((layers[index // heads], index % heads) for index in best)


def retrieval_scores(
    model: PreTrainedModel,
    *,
    prompt_tokens: int = 512,
    needle_tokens: int = 8,
    needles: int = 8,
    seed: int = 0,
) -> Tensor:
    """How often each head attends most to the token that is to be copied.

    Every needle takes a forward pass per token after its first; memory is linear in the prompt.

    Args:
        model: left as it is found.
        prompt_tokens: tokens of the prompt, needle included; its repetition comes after.
        needle_tokens: tokens of a needle, 2 or more.
        needles: prompts, with needles at positions spread evenly from beginning to end.
        seed: of the random tokens.

    Returns:
        `[layers, h]` from 0 to 1, layers with softmax attention from the first to the last.

    Raises:
        As `retrieval_heads`.
    """
    whole(2)("retrieval_scores: needle_tokens", needle_tokens)
    whole(1)("retrieval_scores: needles", needles)
    whole(needle_tokens + 1)("retrieval_scores: prompt_tokens", prompt_tokens)
    vocabulary = vocabulary_size(model)
    if vocabulary <= needle_tokens:
        raise MethodConfigError(
            f"retrieval_scores: needle_tokens must be below {vocabulary}, the model's vocabulary."
        )
    generator = torch.Generator().manual_seed(seed)
    device = input_device(model)
    hits: Tensor | None = None
    for index in range(needles):
        shuffled = torch.randperm(vocabulary, generator=generator, device="cpu")
        needle, others = shuffled[:needle_tokens], shuffled[needle_tokens:]
        draws = torch.randint(
            len(others), (prompt_tokens - needle_tokens,), generator=generator, device="cpu"
        )
        haystack = others[draws]
        start = round(len(haystack) * (index + 0.5) / needles)
        prompt = torch.cat((haystack[:start], needle, haystack[start:]))
        for told in range(1, needle_tokens):
            ids = torch.cat((prompt, needle[:told]))[None].to(device)
            attention = last_token_attention(model, ids, "Detection of retrieval heads")
            hit = (attention.argmax(-1) == start + told).float()
            hits = hit if hits is None else hits + hit
    assert hits is not None
    return hits / (needles * (needle_tokens - 1))
