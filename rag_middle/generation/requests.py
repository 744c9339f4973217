"""Requests to a model: what its forward passes read, and which of it goes together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from transformers import PreTrainedModel

from rag_middle.attention import model_traits, puts_virtual_tokens
from rag_middle.generation.constrained import Constraint
from rag_middle.generation.results import DroppedDocument
from rag_middle.generation.streaming import Follower
from rag_middle.generation.tool_use import ToolReader
from rag_middle.methods import Method
from rag_middle.methods.document_blocks.document_cache import DocumentCache, serves
from rag_middle.options import GenerationOptions, Kernels
from rag_middle.plain_data import check_whole
from rag_middle.tokens import TokenizedPrompt

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPrompt:
    """A prompt ready to be sent.

    Attributes:
        tokens: that fit the context window, documents in the method's order.
        branches: what the forward passes read; `tokens` alone for most methods.
        dropped: documents left out for that.
        seconds: spent on it, a method's look at the model included.
    """

    tokens: TokenizedPrompt
    branches: tuple[TokenizedPrompt, ...]
    dropped: tuple[DroppedDocument, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """What one call to the model reads, and what it is to generate or to score.

    Attributes:
        prompts: that go through the model together, left-padded.
        seeds: one per prompt, ``None`` where nothing is drawn.
        document_cache: keys and values computed for earlier requests.
        continuations: token ids to be scored, one list per prompt; none to generate.
        followers: one per prompt, or none.
        reader: of the calls of tools in the answers.
        constraint: that the answers keep to.
    """

    prompts: Sequence[PreparedPrompt]
    method: Method
    options: GenerationOptions
    seeds: Sequence[int | None]
    kernels: Kernels
    document_cache: DocumentCache | None
    continuations: Sequence[Sequence[int]] = ()
    followers: Sequence[Follower] = ()
    reader: ToolReader | None = None
    constraint: Constraint | None = None

    @property
    def rows(self) -> tuple[TokenizedPrompt, ...]:
        """What the forward passes read: the branches of all prompts, one after the other."""
        return tuple(branch for prompt in self.prompts for branch in prompt.branches)

    @property
    def branches(self) -> list[int]:
        """How many rows each prompt has."""
        return [len(prompt.branches) for prompt in self.prompts]

    def is_cancelled(self) -> bool:
        """Whether somebody asked for an early end of all prompts."""
        cancel = self.options.cancel
        return (cancel is not None and cancel.is_set()) or (
            bool(self.followers) and all(follower.cancel.is_set() for follower in self.followers)
        )


def in_groups(
    model: PreTrainedModel,
    request: GenerationRequest,
    max_batch_size: int,
    run: Callable[[GenerationRequest], list[T]],
) -> list[T]:
    """Results of `run` for groups of prompts of similar length, in the order of the prompts.

    Args:
        model: it says whether a prompt may share a batch with longer ones.
        request: with any number of prompts.
        max_batch_size: most rows in a group; a prompt with more branches goes alone.
        run: takes the part of the request that is a group.

    Raises:
        UnsupportedGenerationError: `max_batch_size` is no whole number above 0.
    """
    check_whole("max_batch_size", max_batch_size, least=1)
    new_tokens = [*map(len, request.continuations)] or (
        [request.options.max_new_tokens] * len(request.prompts)
    )
    lengths = (len(prompt.tokens) for prompt in request.prompts)
    rows = request.branches
    # Prefilled caches differ in length; virtual tokens are as far away as a row's padding is wide.
    if serves(request.document_cache, model, request.method) or puts_virtual_tokens(model):
        rows = [max_batch_size] * len(rows)
    limit = length_that_changes_frequencies(model)
    results: dict[int, T] = {}
    sizes = list(zip(lengths, new_tokens, strict=True))
    for group in _groups(sizes, rows, max_batch_size, limit):
        of_group: dict[str, Any] = {
            name: [values[index] for index in group]
            for name in ("prompts", "seeds", "continuations", "followers")
            if (values := getattr(request, name))
        }
        results.update(zip(group, run(replace(request, **of_group)), strict=True))
    return [results[index] for index in range(len(sizes))]


def _groups(
    sizes: Sequence[tuple[int, int]], rows: Sequence[int], most: int, limit: float
) -> Iterator[list[int]]:
    group: list[int] = []
    for index in sorted(range(len(sizes)), key=lambda i: sizes[i]):
        # What follows shorter prompts is filled up to the longest, after the longest prompt too.
        follows = max(sizes[member][1] for member in [*group, index])
        alike = bool(group) and sizes[group[0]] == sizes[index]
        fits = sizes[index][0] + follows <= limit or alike
        full = sum(rows[member] for member in group) + rows[index] > most
        if group and (full or not fits):
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def length_that_changes_frequencies(model: PreTrainedModel) -> float:
    """Tokens beyond which all rows of a batch get rotary frequencies by its longest row.

    So it is with dynamic and LongRoPE scaling. A prompt must not read differently because of its
    company: beyond that length only prompts of equal size share a batch.
    """
    rope_type = model_traits(model).rope_type or ""
    if "dynamic" not in rope_type and "longrope" not in rope_type:
        return float("inf")
    config: Any = model.config.get_text_config(decoder=True)
    parameters = getattr(config, "rope_parameters", None) or {}
    by_layer_type = [p for p in parameters.values() if isinstance(p, dict)]
    originals = [
        p["original_max_position_embeddings"]
        for p in (by_layer_type or [parameters])
        if p.get("original_max_position_embeddings")
    ]
    return float(min([*originals, config.max_position_embeddings]))
