"""How benchmarks of long contexts make a prompt fit: it loses its middle."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rag_middle import ConfigError, ContextPrompt, RagMiddleModel
from rag_middle.evaluation import Task


@dataclass(frozen=True, kw_only=True)
class CutTask(Task):
    """A task whose prompts lose their middle where they do not fit.

    Attributes:
        max_prompt_tokens: longer prompts lose their middle, also where the model takes more; None
            for as many as it takes.
    """

    max_prompt_tokens: int | None = None

    def fitted(
        self, prompt: ContextPrompt, model: RagMiddleModel, new_tokens: int, template: str
    ) -> ContextPrompt:
        window = model.context_window
        limits = [self.max_prompt_tokens, window and window - new_tokens]
        most = min((limit for limit in limits if limit), default=None)
        return prompt if most is None else cut_middle(model, prompt, most, template=template)


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
