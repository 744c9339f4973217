"""Models that write what they are told to write."""

from typing import Any

import torch

from rag_middle import RagMiddleModel


def write(model: RagMiddleModel, *texts: str | list[int]) -> list[Any]:
    """Have the model write these texts, call after call of one prompt, the last one from then on.

    Control tokens in a text are such; where decoding is constrained, it is a wish.

    Returns:
        Handles, whose `remove` ends it.
    """
    tokenizer = model.tokenizer
    given = [
        tokenizer.encode(text, add_special_tokens=False) if isinstance(text, str) else text
        for text in texts
    ]
    answers = [[*ids, tokenizer.eos_token_id] for ids in given]
    answer: list[int] = []
    left: list[int] = []
    rows = 0

    def begin(_: Any, args: Any, kwargs: Any) -> None:
        nonlocal rows
        ids = kwargs.get("input_ids", args[0] if args else None)
        if ids.shape[1] > 1:  # a new prompt
            answer[:] = answers.pop(0) if len(answers) > 1 else answers[0]
        if ids.shape[1] > 1 or len(ids) != rows:  # or a batch, after the prefix that it shares
            left[:], rows = answer, len(ids)

    def speak(_: Any, __: Any, logits: torch.Tensor) -> torch.Tensor:
        wanted = torch.full_like(logits, -1e4)
        wanted[:, -1, left.pop(0)] = 0.0
        return wanted

    network: Any = model.model
    return [
        network.register_forward_pre_hook(begin, with_kwargs=True),
        network.lm_head.register_forward_hook(speak),
    ]


def prefer(model: RagMiddleModel, *texts: str) -> None:
    """Have the model prefer these tokens, the first one most.

    Under constrained decoding it then writes the shortest JSON there is.
    """
    bias = torch.zeros(len(model.tokenizer))
    for rank, text in enumerate(texts):
        bias[model.tokenizer.encode(text, add_special_tokens=False)[-1]] = 1e4 - 100 * rank
    network: Any = model.model
    network.lm_head.register_forward_hook(lambda _, __, logits: logits + bias)
