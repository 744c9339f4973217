"""Batches of prompts, and what a model makes of them, in this process or in another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from rag_middle.documents import ContextPrompt
from rag_middle.generation import Generation, RagMiddleModel, Score, TextGenerator
from rag_middle.generation.sharing import load_copy
from rag_middle.workers import Workers

#: A generated answer, or the log-likelihood of a given one.
Reply: TypeAlias = Generation | Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Prompts that are asked in the same way.

    Attributes:
        prompts: to ask.
        targets: one per prompt, whose log-likelihood is wanted; None: answers are generated.
        options: of `as_completed`, or of `score_batch`.
    """

    prompts: Sequence[ContextPrompt]
    targets: Sequence[str] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


#: Workers that do a batch at a time.
AnsweringWorkers: TypeAlias = Workers[Batch, list[Reply]]


@dataclass(frozen=True, slots=True)
class Answering:
    """Loads a model in a worker, which answers there.

    Attributes:
        model: directory or hub name.
        options: of `RagMiddleModel.from_pretrained`; a worker's own device stands in for theirs.
        digests: what tells the model from others (`model_digests`), so that a worker that finds
            another one refuses it; without any, nothing is checked.

    Example:
        >>> with closing(Processes(Answering("my-model"), 4, threads_each=1)) as workers:
        ...     results = run(model, task, ["pine"], workers=workers)
    """

    model: str
    options: Mapping[str, Any] = field(default_factory=dict)
    digests: Mapping[str, str | None] = field(default_factory=dict)

    def __call__(self, device: str | None = None) -> Callable[[Batch], list[Reply]]:
        model = load_copy(self.model, self.options, device=device, digests=self.digests)
        return partial(answered, model)


def answered(model: RagMiddleModel, batch: Batch) -> list[Reply]:
    """The reply to each prompt of a batch."""
    if batch.targets is None:
        return list(model.batch(batch.prompts, **batch.options))
    return list(model.score_batch(batch.prompts, batch.targets, **batch.options))


def replies(
    model: TextGenerator, batch: Batch, size: int, workers: AnsweringWorkers | None
) -> Iterator[tuple[int, Reply]]:
    """The index of each prompt with its reply, as they come.

    Args:
        model: asked, where there are no workers.
        batch: as large as one likes.
        size: prompts that a worker takes at a time.
    """
    if workers is None:
        if batch.targets is None:
            yield from model.as_completed(batch.prompts, **batch.options)
        else:
            assert isinstance(model, RagMiddleModel)
            yield from enumerate(answered(model, batch))
        return
    starts = range(0, len(batch.prompts), size)
    parts = [
        Batch(
            prompts=batch.prompts[start : start + size],
            targets=batch.targets and batch.targets[start : start + size],
            options=batch.options,
        )
        for start in starts
    ]
    for index, made in workers.results(parts):
        yield from enumerate(made, starts[index])
