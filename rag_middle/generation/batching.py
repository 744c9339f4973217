"""Which prompts go through the model together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from transformers import PreTrainedModel

from rag_middle.attention import model_traits, puts_virtual_tokens
from rag_middle.methods import Method
from rag_middle.methods.parallel_context.document_cache import DocumentCache, serves
from rag_middle.plain_data import check_whole

if TYPE_CHECKING:
    from rag_middle.generation.prompts import PreparedPrompt

T = TypeVar("T")


def in_groups(
    model: PreTrainedModel,
    prompts: Sequence[PreparedPrompt],
    new_tokens: Sequence[int],
    run: Callable[[list[int]], list[T]],
    *,
    method: Method,
    documents: DocumentCache | None,
    max_batch_size: int,
) -> list[T]:
    """Results of `run` for groups of prompts of similar length, in the order of the prompts.

    Args:
        model: it says whether a prompt may share a batch with longer ones.
        prompts: ready for the method.
        new_tokens: that may follow each prompt.
        run: takes 0-based indices of prompts, returns their results in that order.
        method: of the request.
        documents: keys and values computed for earlier requests.
        max_batch_size: most rows in a group; a prompt with more branches goes alone.

    Raises:
        UnsupportedGenerationError: `max_batch_size` is no whole number above 0.
    """
    check_whole("max_batch_size", max_batch_size, least=1)
    sizes = [(len(p.tokens), new) for p, new in zip(prompts, new_tokens, strict=True)]
    rows = [len(prompt.branches) for prompt in prompts]
    # Prefilled caches differ in length; virtual tokens are as far away as a row's padding is wide.
    if serves(documents, model, method) or puts_virtual_tokens(model):
        rows = [max_batch_size] * len(prompts)
    results: dict[int, T] = {}
    limit = length_that_changes_frequencies(model)
    for group in _groups(sizes, rows, max_batch_size, limit):
        results.update(zip(group, run(group), strict=True))
    return [results[index] for index in range(len(prompts))]


def _groups(
    sizes: Sequence[tuple[int, int]], rows: Sequence[int], most: int, limit: float
) -> Iterator[list[int]]:
    group: list[int] = []
    for index in sorted(range(len(sizes)), key=lambda i: sizes[i]):
        # What follows shorter prompts is filled up to the longest, behind the longest prompt too.
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
