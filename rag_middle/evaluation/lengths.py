"""Whether all prompts of a run fit the model's context window, before the first one is asked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rag_middle.documents import ContextPrompt
from rag_middle.errors import ConfigError
from rag_middle.generation import RagMiddleModel


def check_lengths(
    model: RagMiddleModel,
    prompts: Iterable[tuple[str, ContextPrompt, int]],
    *,
    template: Any = "auto",
    parameter: str = "documents",
) -> None:
    """Refuse prompts that do not fit, all at once.

    Args:
        prompts: the name of each one's question, the prompt, and the tokens of its answer.
            Documents are tokenised one by one, so a question's prompts have the same length in
            every order, and only the one with the longest text is counted.
        parameter: that says how many documents a prompt has.

    Raises:
        ConfigError: some do not fit; it says how many documents would.
    """
    window = model.context_window
    if window is None:
        return
    longest: dict[str, tuple[ContextPrompt, int]] = {}
    for question, prompt, new_tokens in prompts:
        if question not in longest or len(prompt.text) > len(longest[question][0].text):
            longest[question] = prompt, new_tokens
    over = []
    for prompt, new_tokens in longest.values():
        encoded = model.encode(prompt, method="none", template=template)
        if len(encoded) + new_tokens > window:
            over.append((len(encoded), new_tokens, encoded.layout.document_lengths))
    if not over:
        return
    tokens, new_tokens, lengths = max(over, key=lambda entry: entry[0] + entry[1])
    room = window - new_tokens - (tokens - sum(lengths))
    fitting = room * len(lengths) // sum(lengths) if lengths else 0
    raise ConfigError(
        f"The prompts of {len(over)} of {len(longest)} questions do not fit: the longest has "
        f"{tokens} tokens in {len(lengths)} documents, its answer up to {new_tokens}, and the "
        f"context window has {window}. "
        + (
            f"Ask for fewer with {parameter}: about {fitting} fit."
            if fitting >= 2
            else "Use a model with a larger context window, or shorter documents."
        )
    )
