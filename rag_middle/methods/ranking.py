"""What methods that put documents in order have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rag_middle.attention.traits import ModelTraits
from rag_middle.errors import MethodConfigError
from rag_middle.layout import PromptLayout
from rag_middle.methods.base import as_several, require_finite
from rag_middle.methods.requirements import require_interface
from rag_middle.tokens import TokenizedPrompt

if TYPE_CHECKING:
    from torch import Tensor

    from rag_middle.methods.base import Runner


def best_first(prompt: TokenizedPrompt) -> list[int]:
    """Documents by falling score, 0-based; in prompt order where nobody scored them.

    Equal scores keep prompt order.
    """
    count = len(prompt.layout.documents)
    scores = prompt.scores
    if scores is None:
        return list(range(count))
    return sorted(range(count), key=lambda index: -scores[index])


def by_position(owner: str, name: str, values: Iterable[float]) -> tuple[float, ...]:
    """`values`, one per position, as a tuple.

    Raises:
        MethodConfigError: fewer than two, or values that are not finite numbers.
    """
    numbers = as_several(owner, name, values, "numbers")
    require_finite(owner, **{f"{name}[{i}]": value for i, value in enumerate(numbers)})
    if len(numbers) < 2:
        raise MethodConfigError(f"{owner}: {name} needs at least two positions, got {numbers}.")
    return numbers


def best_at_highest(prompt: TokenizedPrompt, values: Sequence[float]) -> list[int]:
    """The order in which the document of rank ``r`` stands at the position of rank ``r``.

    Args:
        prompt: ranked by `best_first`.
        values: by position, first to last; linear between them for another number of documents.
            Of equal positions, the earlier one gets the better document.
    """
    ranked = best_first(prompt)
    count = len(ranked)
    if count < 2:
        return ranked
    import numpy as np  # listing methods needs none of it

    at = np.interp(np.linspace(0, len(values) - 1, count), range(len(values)), values)
    order = [0] * count
    positions = sorted(range(count), key=lambda position: -at[position])
    for document, position in zip(ranked, positions, strict=True):
        order[position] = document
    return order


def attention_received(
    prompt: TokenizedPrompt, runner: Runner, layers: Sequence[int] | None, *, per_token: bool
) -> list[float]:
    """Attention of the prompt's last token to each document, averaged over heads and layers.

    Args:
        prompt: as the model shall read it.
        runner: of the request; runs the model once.
        layers: 0-based layers of the model, ``None`` for all with softmax attention.
        per_token: the mean over a document's tokens instead of their sum.
    """
    attention = runner.last_token_attention(prompt)  # [layers, h, l]
    if layers is not None:
        attending = sorted(runner.traits.layers)
        attention = attention[[attending.index(layer) for layer in layers]]
    return _by_document(attention.mean((0, 1)), prompt.layout, per_token=per_token)


def _by_document(attention: Tensor, layout: PromptLayout, *, per_token: bool) -> list[float]:
    received = [float(attention[start:end].sum()) for start, end in layout.documents]
    if not per_token:
        return received
    return [
        amount / max(1, tokens)
        for amount, tokens in zip(received, layout.document_lengths, strict=True)
    ]


def check_layers(method: str, layers: Sequence[int] | None, traits: ModelTraits) -> None:
    """Refuse a model whose attention cannot be looked at, and layers it does not have.

    Raises:
        UnsupportedArchitectureError: the attention layers cannot be reached.
        MethodConfigError: a layer without softmax attention, or none of this model.
    """
    require_interface(method, traits)
    unknown = [layer for layer in layers or () if layer not in traits.layers]
    if unknown:
        raise MethodConfigError(
            f"{method}: layers {unknown} of this {traits.model_type} model have no softmax "
            f"attention to look at: choose from {sorted(traits.layers)}."
        )
