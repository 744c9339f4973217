"""Several forward passes per prompt, which give one distribution (`Method.combine`).

A prompt's branches are rows of the batch that follow one another. They all get the combined logits,
so they go on with the same token and stay in step, beams included.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteria

from rag_middle.errors import PromptError
from rag_middle.methods import Method, Runner
from rag_middle.tokens import TokenizedPrompt

__all__ = ["Combined", "FirstBranches", "arranged", "branched", "combined", "first_rows"]


def arranged(prompt: TokenizedPrompt, method: Method, runner: Runner) -> TokenizedPrompt:
    """The prompt with its documents in the method's order.

    Raises:
        PromptError: the method leaves documents out, or names one twice.
    """
    order = [int(index) for index in method.arrange(prompt, runner)]
    if sorted(order) != list(range(len(prompt.layout.documents))):
        raise PromptError(
            f"{method.name} arranged {len(prompt.layout.documents)} documents as {order}: an order "
            "names each of them once, 0-based. This is a mistake in the method."
        )
    return prompt.select(order)


def branched(
    prompt: TokenizedPrompt, method: Method, runner: Runner
) -> tuple[TokenizedPrompt, ...]:
    """The prompts of the method's forward passes, the arranged one alone for most methods.

    Raises:
        PromptError: the method names no branch, or documents that do not exist.
    """
    if not method.combines:
        return (prompt,)
    branches = tuple(prompt.select(selection) for selection in method.branches(prompt, runner))
    if not branches:
        raise PromptError(f"{method.name} named no branch. This is a mistake in the method.")
    return branches


def combined(method: Method, logits: Tensor, branches: Sequence[int]) -> Tensor:
    """One row per prompt from one row per branch.

    Args:
        method: of the request.
        logits: `[rows, ..., v]` in float32.
        branches: how many rows each prompt has.

    Returns:
        `[b, ..., v]`: of the method, or the logits as they are where it combines nothing.
    """
    if not method.combines:
        return logits
    return torch.stack(
        [method.combine(rows.movedim(0, -2)) for rows in logits.split(list(branches))]
    )


class Combined(LogitsProcessor):
    """Gives the branches of a prompt the scores that come from all of them.

    Args:
        method: that combines.
        branches: of each prompt.
        beams: rows that each branch takes.
        inner: applied to the combined scores, one row per prompt and beam.
    """

    def __init__(
        self, method: Method, branches: Sequence[int], beams: int, inner: Sequence[LogitsProcessor]
    ) -> None:
        self._method = method
        self._branches = branches
        self._beams = beams
        self._inner = inner

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """From `[rows, v]` to `[rows, v]`."""
        by_branch = scores.float().view(-1, self._beams, scores.shape[-1])
        of_prompts = combined(self._method, by_branch, self._branches)  # [b, beams, v]
        first = input_ids.view(-1, self._beams, input_ids.shape[-1])[self._first(scores.device)]
        flat = of_prompts.flatten(0, 1).log_softmax(dim=-1)
        for processor in self._inner:
            flat = processor(first.flatten(0, 1), flat)
        counts = torch.tensor(self._branches, device=scores.device)
        return flat.view_as(of_prompts).repeat_interleave(counts, dim=0).flatten(0, 1)

    def _first(self, device: torch.device) -> Tensor:
        return torch.tensor(first_rows(self._branches), device=device)


class FirstBranches(StoppingCriteria):
    """Shows criteria the first branch of each prompt and has all of its branches end with it."""

    def __init__(self, inner: StoppingCriteria, branches: Sequence[int]) -> None:
        self._inner = inner
        self._branches = branches

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: object) -> Tensor:
        """Which rows are done, boolean `[rows]`."""
        first = torch.tensor(first_rows(self._branches), device=input_ids.device)
        done: Tensor = self._inner(input_ids[first], scores, **kwargs)
        counts = torch.tensor(self._branches, device=input_ids.device)
        return done.repeat_interleave(counts)


def first_rows(branches: Sequence[int]) -> list[int]:
    """Index of the first row of each prompt."""
    return list(accumulate(branches, initial=0))[:-1]
