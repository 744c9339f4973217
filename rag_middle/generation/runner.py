"""What methods may do with the model while they arrange documents."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rag_middle.attention import ModelTraits, last_token_attention, model_traits
from rag_middle.generation.facts import device_of
from rag_middle.generation.scoring import next_token_logits
from rag_middle.generation.tokenizing import LockedTokenizer
from rag_middle.generation.turns import in_eval_mode, turn
from rag_middle.methods import Method, NoMethod
from rag_middle.tokens import TokenizedPrompt

__all__ = ["ModelRunner"]


class ModelRunner:
    """`rag_middle.methods.Runner` on a model: each call waits for its turn.

    Args:
        model: of the request.
        tokenizer: of the model.
        method: name of the method that asks, for messages.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: LockedTokenizer, method: str) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._method = method

    @property
    def traits(self) -> ModelTraits:
        """What the model is like."""
        return model_traits(self._model)

    def last_token_attention(self, prompt: TokenizedPrompt) -> Tensor:
        """`[layers, h, l]` in float32: one pass of the unmodified model."""
        ids = torch.tensor([prompt.input_ids], device=device_of(self._model))
        with turn(self._model), in_eval_mode(self._model):
            return last_token_attention(self._model, ids, self._method)

    def logits(self, prompt: TokenizedPrompt, method: Method | None = None) -> Tensor:
        """Next-token logits `[v]` in float32 under the plan of `method`."""
        return next_token_logits(self._model, prompt, method or NoMethod())

    def token_ids(self, text: str) -> tuple[int, ...]:
        """Ids of text inside a prompt."""
        return self._tokenizer.continuation(text)
