"""What a wrapper of adapters (PEFT) makes depend on the tokens of a pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from transformers import PreTrainedModel


def adapted_attention(model: nn.Module) -> set[nn.Module]:
    """Attention modules beside which an adapter (LLaMA-Adapter) attends to prompts of its own."""
    return {part.model for part in model.modules() if hasattr(part, "adaption_prompt")}  # type: ignore[misc]


def puts_virtual_tokens(model: PreTrainedModel) -> bool:
    """Whether the adapter puts tokens before a prompt, or before the padding of its row."""
    return bool(getattr(_adapter_of(model), "is_prompt_learning", False))


def invocation_of(model: PreTrainedModel) -> tuple[int, ...]:
    """The tokens from which on an activated LoRA (aLoRA) acts; none for other adapters.

    PEFT looks for them among the tokens of a pass, and would miss those that were read before it:
    passes that go on from a cache need ``alora_offsets``.
    """
    return tuple(getattr(_adapter_of(model), "alora_invocation_tokens", None) or ())


def last_invocation(ids: Sequence[int], invocation: Sequence[int]) -> int | None:
    """Where the last invocation in `ids` starts, None where there is none."""
    length, wanted = len(invocation), tuple(invocation)
    starts = range(len(ids) - length, -1, -1)
    return next((at for at in starts if tuple(ids[at : at + length]) == wanted), None)


def _adapter_of(model: PreTrainedModel) -> Any:
    return getattr(model, "active_peft_config", None)
