"""Whether all prompts of a run fit the model's context window, before the first one is asked.

And, for tasks that want it, how a long prompt loses its middle until it fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rag_middle.documents import ContextPrompt
from rag_middle.errors import ConfigError
from rag_middle.generation import RagMiddleModel


@dataclass(frozen=True, slots=True)
class CheckedPrompt:
    """A prompt, and how many tokens shall fit after it.

    Attributes:
        question: its name. Documents are tokenised one by one, so a question's prompts have the
            same length in every order, and only the one with the longest text is counted.
        prompt: what the model reads.
        new_tokens: of the answer.
    """

    question: str
    prompt: ContextPrompt
    new_tokens: int


def check_lengths(
    model: RagMiddleModel,
    prompts: Sequence[CheckedPrompt],
    *,
    template: Any = "auto",
    parameter: str | None = "documents",
) -> None:
    """Refuse prompts that do not fit, all at once.

    Args:
        parameter: that says how many documents a prompt has; None where fewer are not shorter.

    Raises:
        ConfigError: some do not fit; it says how many documents would.
    """
    window = model.context_window
    if window is None:
        return
    longest: dict[str, CheckedPrompt] = {}
    for checked in prompts:
        known = longest.get(checked.question)
        if known is None or len(checked.prompt.text) > len(known.prompt.text):
            longest[checked.question] = checked
    encoded = [
        (model.encode(c.prompt, method="none", template=template), c) for c in longest.values()
    ]
    over = [(tokens, c) for tokens, c in encoded if len(tokens) + c.new_tokens > window]
    if not over:
        return
    tokens, checked = max(over, key=lambda entry: len(entry[0]) + entry[1].new_tokens)
    lengths = tokens.layout.document_lengths
    room = window - checked.new_tokens - (len(tokens) - sum(lengths))
    fitting = max(0, room * len(lengths) // sum(lengths)) if sum(lengths) else 0
    if parameter is None or fitting < 2:
        advice = "Use a model with a larger context window, or shorter documents."
    else:
        advice = f"Ask for fewer with {parameter}: about {fitting} fit."
    raise ConfigError(
        f"The prompts of {len(over)} of {len(longest)} questions do not fit: the longest has "
        f"{len(tokens)} tokens in {len(lengths)} documents, its answer up to "
        f"{checked.new_tokens}, and the context window has {window}. {advice}"
    )


def cut_middle(
    model: RagMiddleModel, prompt: ContextPrompt, most_tokens: int, *, template: Any = "auto"
) -> ContextPrompt:
    """The prompt without the tokens in its middle, where it has too many.

    As LongBench does it (arXiv:2308.14508): of the text, the first half of the tokens that fit and
    the last half stay. Documents stay documents, those within the cut are left out.

    Args:
        most_tokens: that the prompt may have, template included.

    Raises:
        ConfigError: the tokenizer does not say where its tokens lie in the text.
    """
    excess = _tokens(model, prompt, template) - most_tokens
    if excess <= 0:
        return prompt
    if not model.tokenizer.is_fast:
        raise ConfigError(
            "Long prompts are cut in their middle by the positions of tokens in the text, which "
            "this tokenizer does not know. Load a fast one (use_fast=True)."
        )
    encoding = model.tokenizer(
        prompt.text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
    )
    offsets = encoding["offset_mapping"]
    room, shortened = len(offsets), prompt
    while excess > 0:  # a template, and documents tokenised on their own, take tokens too
        room -= excess
        half = room // 2
        if half < 1:
            raise ConfigError(
                f"No prompt fits {most_tokens} tokens. Use a larger context window, or ask for "
                "shorter answers."
            )
        shortened = _without(prompt, offsets[half - 1][1], offsets[-half][0])
        excess = _tokens(model, shortened, template) - most_tokens
    return shortened


def _tokens(model: RagMiddleModel, prompt: ContextPrompt, template: Any) -> int:
    return len(model.encode(prompt, method="none", template=template))


def _without(prompt: ContextPrompt, start: int, end: int) -> ContextPrompt:
    """The prompt without the characters from `start` to `end` of its text."""
    cursor = 0

    def left_of(text: str) -> str:
        nonlocal cursor
        first, last = (min(max(at - cursor, 0), len(text)) for at in (start, end))
        cursor += len(text)
        return text[:first] + text[last:]

    prefix, documents = left_of(prompt.prefix), []
    for document in prompt.documents:
        text = left_of(document.render())
        cursor += len(prompt.separator)
        if text:
            documents.append(replace(document, text=text, title=None))
    return ContextPrompt(prefix, documents, left_of(prompt.suffix), prompt.separator)
