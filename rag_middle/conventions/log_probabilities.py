"""Log-probabilities of generated tokens in OpenAI's shape, for the server and the integrations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rag_middle.generation.results import TokenLogProbability

__all__ = ["openai_logprobs"]


def openai_logprobs(
    tokens: Sequence[TokenLogProbability], token_text: Callable[[int], str]
) -> dict[str, Any]:
    """The field ``logprobs`` of a chat completion, JSON-ready.

    Args:
        tokens: of the answer, in order.
        token_text: what a token adds to a text.
    """

    def entry(token_id: int, log_probability: float) -> dict[str, Any]:
        text = token_text(token_id)
        # A part of a character has bytes that its text does not say.
        is_whole = "\N{REPLACEMENT CHARACTER}" not in text
        return {
            "token": text,
            "logprob": log_probability,
            "bytes": list(text.encode()) if is_whole else None,
        }

    content = [
        {
            **entry(token.token_id, token.log_probability),
            "top_logprobs": [entry(*other) for other in token.alternatives],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}
