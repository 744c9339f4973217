"""What evaluation and answering need of a model, wherever its weights are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, Unpack

from rag_middle.generation.model import GenerateKwargs
from rag_middle.generation.prompts import MethodLike, Prompt
from rag_middle.generation.results import Generation
from rag_middle.generation.streaming import GenerationStream
from rag_middle.methods import Method


class TextGenerator(Protocol):
    """A model that answers prompts: `RagMiddleModel`, or one behind an HTTP address.

    Nothing here needs the weights. What does (log-likelihoods, lengths in tokens, times and
    memory) is for `RagMiddleModel` only.
    """

    @property
    def method(self) -> Method:
        """What calls run under that name no method of their own."""

    @property
    def context_window(self) -> int | None:
        """Tokens that prompt and answer may have together; ``None`` where nobody knows."""

    def generate(self, prompt: Prompt, **options: Unpack[GenerateKwargs]) -> Generation:
        """Generate text for one prompt."""

    def as_completed(
        self,
        prompts: Sequence[Prompt],
        *,
        max_batch_size: int = 8,
        **options: Unpack[GenerateKwargs],
    ) -> Iterator[tuple[int, Generation]]:
        """Generate for several prompts: 0-based index of each and its text, as they come."""

    def stream(self, prompt: Prompt, **options: Unpack[GenerateKwargs]) -> GenerationStream:
        """Generate text for one prompt, piece by piece."""

    def checked_method(
        self, method: MethodLike, method_options: Mapping[str, Any] | None = None
    ) -> Method:
        """A method object that can be used with this model, or an error that says why not."""

    def identity(self) -> dict[str, Any]:
        """What tells this model from others, JSON-ready; ``name`` is for people."""

    def software(self) -> dict[str, str]:
        """Versions of what it runs on, and ``device``."""
