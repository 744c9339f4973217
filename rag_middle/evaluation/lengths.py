"""Whether all prompts of a run fit the model's context window, before the first one is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rag_middle.documents import ContextPrompt
from rag_middle.errors import EvaluationConfigError
from rag_middle.generation import RagMiddleModel
from rag_middle.wording import Argument

__all__ = ["CheckedPrompt", "check_lengths"]


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
    parameter: str = "documents",
) -> None:
    """Refuse prompts that do not fit, all at once.

    Args:
        model: that will read them.
        prompts: of the run.
        template: as in generation.
        parameter: that says how many documents a prompt has.

    Raises:
        EvaluationConfigError: some do not fit; it says how many documents would.
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
    advice: tuple[str | Argument, ...] = (
        "Ask for fewer with ",
        Argument(parameter),
        f": about {fitting} fit.",
    )
    if fitting < 2:
        advice = ("Use a model with a larger context window, or shorter documents.",)
    raise EvaluationConfigError(
        f"The prompts of {len(over)} of {len(longest)} questions do not fit: the longest has "
        f"{len(tokens)} tokens in {len(lengths)} documents, its answer up to "
        f"{checked.new_tokens}, and the context window has {window}. ",
        *advice,
    )
