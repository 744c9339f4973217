"""Criteria that watch transformers' generation loop from inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria

from rag_middle.generation.text import Completion, Decode, first_stop

__all__ = ["BeamStops", "Progress"]


class Progress(StoppingCriteria):
    """Notes when the first token came, follows the text where asked to, and stops on request.

    Args:
        completions: one per row; fed here where `live`, else left alone.
        live: follow the text as it grows. Reading tokens makes a GPU wait, so only where needed.
        cancelled: whether all rows shall end.
        on_step: called after each token where `live`.
    """

    def __init__(
        self,
        completions: Sequence[Completion],
        *,
        live: bool,
        cancelled: Callable[[], bool],
        on_step: Callable[[], None] | None = None,
    ) -> None:
        self._completions = completions
        self.live = live
        self._cancelled = cancelled
        self._on_step = on_step
        self.first_token_at: float | None = None

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Which rows are done, boolean `[b]`; `input_ids` are `[b, n]`."""
        if self.live:
            for completion, token in zip(self._completions, input_ids[:, -1].tolist(), strict=True):
                completion.push(token)
        if self.first_token_at is None:
            input_ids[0, -1].item()  # the device may be behind: wait for the token itself
            self.first_token_at = perf_counter()
        if self.live and self._on_step is not None:
            self._on_step()
        cancelled = self._cancelled()
        if self.live and not cancelled:
            done = [completion.finish_reason is not None for completion in self._completions]
            return torch.tensor(done, device=input_ids.device)
        return torch.full(input_ids.shape[:1], cancelled, device=input_ids.device)


class BeamStops(StoppingCriteria):
    """Stop strings in a beam search, where rows are hypotheses that come, go and move.

    Args:
        decode: text of token ids.
        stops: the strings.
        width: columns of the prompt.
    """

    def __init__(self, decode: Decode, stops: Sequence[str], width: int) -> None:
        self._decode = decode
        self._stops = stops
        self._width = width

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Which hypotheses hold a stop string, boolean `[rows]`."""
        rows = input_ids[:, self._width :].tolist()
        done = [first_stop(self._decode(row), self._stops) is not None for row in rows]
        return torch.tensor(done, device=input_ids.device, dtype=torch.bool)
