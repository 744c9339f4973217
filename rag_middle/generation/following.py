"""Watching the prompts of a batch while their tokens come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor
from transformers import LogitsProcessor

from rag_middle.generation.results import Generation, TokenLogProbability

_LEAST = -9999.0  # JSON has no infinity: what cannot be generated


@dataclass(frozen=True, slots=True, kw_only=True)
class Follower:
    """What is done with one prompt of a batch while the others run.

    The calls come from the thread that generates, which waits for them.

    Attributes:
        on_text: called with new text, and with the tokens since the last call where
            `alternatives` asks for them; either may be empty, not both.
        on_end: called once, when the text of this prompt has ended; others may go on.
        cancel: when set, by any thread, this prompt ends after the token under way.
        alternatives: how many of the most probable tokens to report beside each generated one;
            None: what the options of the request say.
    """

    on_text: Callable[[str, Sequence[TokenLogProbability]], None]
    on_end: Callable[[Generation], None] = lambda _: None
    cancel: threading.Event = field(default_factory=threading.Event)
    alternatives: int | None = None


class LogProbabilities(LogitsProcessor):
    """Remembers how probable each row's next token was before one was chosen.

    Of the distribution that a temperature, `top_k` and `top_p` have not changed yet.
    """

    def __init__(self) -> None:
        self._rows: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """`[b, v]` scores, as they came."""
        self._rows = scores.float().log_softmax(dim=-1).clamp(min=_LEAST)
        return scores

    def of(self, row: int, token_id: int, alternatives: int) -> TokenLogProbability:
        """The token that a row got in the last step."""
        assert self._rows is not None, "a step was made"
        log_probabilities = self._rows[row]
        values, ids = log_probabilities.topk(min(alternatives, len(log_probabilities)))
        return TokenLogProbability(
            token_id=token_id,
            log_probability=float(log_probabilities[token_id]),
            alternatives=tuple(zip(ids.tolist(), values.tolist(), strict=True)),
        )
