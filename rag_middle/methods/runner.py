"""The model, as far as methods may use it while they put documents in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rag_middle.attention.traits import ModelTraits
from rag_middle.tokens import TokenizedPrompt

if TYPE_CHECKING:
    from torch import Tensor

    from rag_middle.methods.base import Method

__all__ = ["Runner"]


class Runner(Protocol):
    """Runs the model of a request. Every call is a forward pass, or several."""

    @property
    def traits(self) -> ModelTraits:
        """What the model is like."""
        ...

    def last_token_attention(self, prompt: TokenizedPrompt) -> Tensor:
        """Attention of the prompt's last token, in one pass of the unmodified model.

        Returns:
            `[layers, h, l]` in float32 on the CPU: weights after the softmax, over the prompt's
            tokens, of each layer with softmax attention, from the first to the last.

        Raises:
            UnsupportedArchitectureError: its attention layers cannot be reached.
        """
        ...

    def logits(self, prompt: TokenizedPrompt, method: Method | None = None) -> Tensor:
        """Next-token logits `[v]` in float32 after the prompt, as it is, under `method`.

        `method` is used for its plan only; ``None`` is the unmodified model.
        """
        ...

    def token_ids(self, text: str) -> tuple[int, ...]:
        """Ids of text inside a prompt (a dummy document, say)."""
        ...
