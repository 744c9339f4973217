"""What a model and its tokenizer say about devices, tokens and ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["device_of", "end_tokens", "pad_token_id", "vocabulary_size"]


def device_of(model: PreTrainedModel) -> torch.device:
    """Where token ids go in."""
    weight: Tensor = model.get_input_embeddings().weight  # type: ignore[assignment]
    if weight.device.type == "meta":  # offloaded: comes for the call to where it is computed
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return weight.device


def vocabulary_size(model: PreTrainedModel) -> int:
    """Tokens the model has an embedding for."""
    weight: Tensor = model.get_input_embeddings().weight  # type: ignore[assignment]
    return weight.shape[0]


def pad_token_id(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """A token to fill with; it is masked, so any one the model knows will do."""
    rows = vocabulary_size(model)
    own: Any = model.generation_config
    for candidate in (tokenizer.pad_token_id, own.pad_token_id, tokenizer.eos_token_id):
        if isinstance(candidate, int) and 0 <= candidate < rows:
            return candidate
    return 0


def end_tokens(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, stops: Sequence[str]
) -> dict[int, str | None]:
    """Tokens that end a text: the model's, else the tokenizer's; and stop strings that are tokens.

    Special tokens never show in the text, so there a stop string would not be found.
    """
    own: Any = model.generation_config
    ids = own.eos_token_id if own.eos_token_id is not None else tokenizer.eos_token_id
    ends: dict[int, str | None] = dict.fromkeys([ids] if isinstance(ids, int) else ids or ())
    for token_id, token in tokenizer.added_tokens_decoder.items():
        if token.special and str(token.content) in stops:
            ends[token_id] = str(token.content)
    return ends
