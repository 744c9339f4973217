"""How likely a model finds what follows a prompt: given texts, and every next token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from torch import Tensor

from rag_middle.errors import UnsupportedGenerationError
from rag_middle.generation import scoring
from rag_middle.generation.bound_model import BoundModel
from rag_middle.generation.comparing import scores, scores_by_method
from rag_middle.generation.options import GenerationOptions, PromptKwargs, checked_options
from rag_middle.generation.preparing import MethodLike
from rag_middle.generation.results import Score
from rag_middle.generation.tokenizing import Prompt
from rag_middle.methods import NoMethod

__all__ = ["LikelihoodScoring"]


class LikelihoodScoring(BoundModel):
    """A model that is asked for numbers: `score`, `score_batch`, `score_methods`, `logits`."""

    def score(
        self,
        prompt: Prompt,
        continuation: str | Sequence[int],
        *,
        method: MethodLike | None = None,
        method_options: Mapping[str, Any] | None = None,
        **options: Unpack[PromptKwargs],
    ) -> Score:
        """How likely the model finds `continuation` after the prompt.

        Args:
            prompt: see `RagMiddleModel`.
            continuation: text (give the space it begins with, if any) or token ids.
            method: as for `generate`, like `method_options`.
            method_options: see there.
            options: those of `GenerationOptions` that shape the prompt.
        """
        return self.score_batch(
            [prompt], [continuation], method=method, method_options=method_options, **options
        )[0]

    def score_batch(
        self,
        prompts: Sequence[Prompt],
        continuations: Sequence[str | Sequence[int]],
        *,
        method: MethodLike | None = None,
        method_options: Mapping[str, Any] | None = None,
        max_batch_size: int = 8,
        **options: Unpack[PromptKwargs],
    ) -> list[Score]:
        """`score` for each pair of prompt and continuation, several in each forward pass.

        Repeat a prompt to compare continuations of it.
        """
        known = checked_options(options, allowed=PromptKwargs)
        chosen = self._prepare.method(method, method_options, default=self.method)
        ids = self._continuations(prompts, continuations)
        prepared = self._prepare.prompts(prompts, chosen, known, [len(each) for each in ids])
        return scores(
            self.model,
            prepared,
            ids,
            chosen,
            max_batch_size=max_batch_size,
            documents=self.document_cache,
        )

    def score_methods(
        self,
        prompts: Sequence[Prompt],
        continuations: Sequence[str | Sequence[int]],
        methods: Sequence[MethodLike],
        *,
        max_batch_size: int = 8,
        **options: Unpack[PromptKwargs],
    ) -> list[list[Score]]:
        """`score_batch` under each of several methods, to compare them.

        Where methods change the attention of a prompt's last tokens only
        (`positional_hidden_states`), the model reads each prompt once for all of them, and only
        its last tokens and the continuation under every one. That is done for models whose cache
        keeps every token (no sliding windows, no linear attention, no rotary frequencies that
        depend on the prompt's length); else prompts are read for every method. Numbers are those
        of `score_batch`, up to how floats are rounded, and do not depend on the other methods.

        Args:
            prompts: as for `score_batch`, like `continuations`, `max_batch_size` and `options`.
            continuations: see there.
            methods: names, compositions or method objects.
            max_batch_size: see there. What is read of a batch stays in memory while the methods
                take turns: keys and values, and the attention input of every layer.
            options: see there.

        Returns:
            By method, in the order of the prompts.
        """
        known = checked_options(options, allowed=PromptKwargs)
        chosen = [self._prepare.method(each, None, default=self.method) for each in methods]
        ids = self._continuations(prompts, continuations)
        room = [len(each) for each in ids]
        tokens = [self._prepare.encode(prompt, NoMethod(), known) for prompt in prompts]
        fit = GenerationOptions(
            on_missing_documents=known.on_missing_documents, on_overflow=known.on_overflow
        )
        return scores_by_method(
            self.model,
            lambda method: self._prepare.prompts(tokens, method, fit, room),
            ids,
            chosen,
            max_batch_size=max_batch_size,
            documents=self.document_cache,
        )

    def logits(
        self,
        prompt: Prompt,
        *,
        all_positions: bool = False,
        method: MethodLike | None = None,
        method_options: Mapping[str, Any] | None = None,
        **options: Unpack[PromptKwargs],
    ) -> Tensor:
        """Logits of the next token, float32, on the model's device.

        Args:
            prompt: see the class.
            all_positions: after every prompt token instead of the last one; not for methods that
                combine several forward passes, whose prompts differ.
            method: as for `generate`, like `method_options`.
            method_options: see there.
            options: those of `GenerationOptions` that shape the prompt.

        Returns:
            `[v]`, or `[l, v]` for all positions.
        """
        known = checked_options(options, allowed=PromptKwargs)
        chosen = self._prepare.method(method, method_options, default=self.method)
        prepared = self._prepare.prompts([prompt], chosen, known, 0)[0]
        return scoring.prompt_logits(
            self.model,
            prepared.branches,
            chosen,
            all_positions=all_positions,
            documents=self.document_cache,
        )

    def _continuations(
        self, prompts: Sequence[Prompt], continuations: Sequence[str | Sequence[int]]
    ) -> list[tuple[int, ...]]:
        if len(prompts) != len(continuations):
            raise UnsupportedGenerationError(
                f"Give one continuation per prompt: there are {len(continuations)} for "
                f"{len(prompts)} prompts."
            )
        return [self._prepare.continuation(text) for text in continuations]
