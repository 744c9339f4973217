"""Text for prompts: one, several at a time, or piece by piece."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from rag_middle.errors import UnsupportedGenerationError
from rag_middle.generation import engine
from rag_middle.generation.batching import in_groups, rows_of
from rag_middle.generation.bound_model import BoundModel
from rag_middle.generation.options import GenerationKwargs, checked_options
from rag_middle.generation.own_config import check_own_config
from rag_middle.generation.preparing import MethodLike
from rag_middle.generation.results import Generation
from rag_middle.generation.streaming import GenerationStream
from rag_middle.generation.tokenizing import Prompt
from rag_middle.generation.turns import refuse_inside_request

__all__ = ["TextGeneration"]


class TextGeneration(BoundModel):
    """A model that writes: `generate`, `batch`, `stream`."""

    def generate(
        self,
        prompt: Prompt,
        *,
        method: MethodLike | None = None,
        method_options: Mapping[str, Any] | None = None,
        **options: Unpack[GenerationKwargs],
    ) -> Generation:
        """Generate text for one prompt.

        Args:
            prompt: see `RagMiddleModel`.
            method: for this call, instead of the model's.
            method_options: its parameters.
            options: fields of `GenerationOptions`: ``max_new_tokens``, ``temperature``, ``top_p``,
                ``top_k``, ``repetition_penalty``, ``num_beams``, ``seed``, ``stop``, ...

        Raises:
            UnsupportedGenerationError: options that do not exist, make no sense or cannot be
                served.
            ContextOverflowError: the prompt does not fit.
            PromptError: the prompt cannot be turned into tokens, or has no documents where
                ``on_missing_documents="error"``.
            MarkerError: marked documents do not stand together.
        """
        checked_options(options, allowed=GenerationKwargs)  # `max_batch_size` is none of them
        return self.batch(
            [prompt], method=method, method_options=method_options, max_batch_size=1, **options
        )[0]

    def batch(
        self,
        prompts: Sequence[Prompt],
        *,
        method: MethodLike | None = None,
        method_options: Mapping[str, Any] | None = None,
        max_batch_size: int = 8,
        **options: Unpack[GenerationKwargs],
    ) -> list[Generation]:
        """Generate for several prompts, several at a time in each forward pass.

        Prompts of similar length go together; results come in the order of the prompts. They are
        what each prompt gets alone, up to how floats are rounded: in half precision, a row beside
        longer ones may fall otherwise where two tokens are nearly as likely.

        Args:
            prompts: any number.
            method: as for `generate`, like `method_options`.
            method_options: see there.
            max_batch_size: prompts per forward pass; memory grows with it. Where a method combines
                several passes per prompt, each of them counts.
            options: as for `generate`, the same for all prompts; ``seed`` may be one per prompt.

        Raises:
            As for `generate`; nothing is generated where any prompt is refused.
        """
        known = checked_options(options, allowed=GenerationKwargs)
        check_own_config(self.model)
        chosen = self._prepare.method(method, method_options, default=self.method)
        prepared = self._prepare.prompts(prompts, chosen, known, known.max_new_tokens)
        seeds = known.seeds(len(prepared))

        def run(group: list[int]) -> list[Generation]:
            return engine.generate(
                self.model,
                self._prepare.tokenizer,
                [prepared[index] for index in group],
                chosen,
                known,
                seeds=[seeds[index] for index in group],
                documents=self.document_cache,
            )

        sizes = [(len(each.tokens), known.max_new_tokens) for each in prepared]
        rows = rows_of(prepared, self.model, chosen, self.document_cache, max_batch_size)
        return in_groups(self.model, sizes, max_batch_size, run, rows)

    def stream(
        self,
        prompt: Prompt,
        *,
        method: MethodLike | None = None,
        method_options: Mapping[str, Any] | None = None,
        **options: Unpack[GenerationKwargs],
    ) -> GenerationStream:
        """Generate text for one prompt, piece by piece.

        What may be the beginning of a stop string, or of a character of several tokens, is held
        back until it is known. Arguments are those of `generate`, and so are the errors; they are
        raised here, before anything runs.

        Raises:
            UnsupportedGenerationError: also for beams, which are only known at the end.
        """
        known = checked_options(options, allowed=GenerationKwargs)
        if known.num_beams > 1:
            raise UnsupportedGenerationError(
                f"A search with {known.num_beams} beams knows its text only at the end: use "
                "generate(), or num_beams=1."
            )
        refuse_inside_request(self.model)
        check_own_config(self.model)
        chosen = self._prepare.method(method, method_options, default=self.method)
        prepared = self._prepare.prompts([prompt], chosen, known, known.max_new_tokens)
        seeds = known.seeds(1)
        model, tokenizer = self.model, self._prepare.tokenizer
        documents = self.document_cache

        def work(emit: Callable[[str], None], stopped: threading.Event) -> Generation:
            return engine.generate(
                model,
                tokenizer,
                prepared,
                chosen,
                known,
                seeds=seeds,
                stopped=stopped,
                on_text=emit,
                documents=documents,
            )[0]

        return GenerationStream(work, document_ids=prepared[0].tokens.document_ids)
