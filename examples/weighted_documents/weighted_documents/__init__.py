"""Attention to a document, multiplied after the softmax by a function of the retriever's score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp
from typing import ClassVar

import torch
from torch import Tensor

from rag_middle.attention import (
    AttentionContext,
    AttentionPlan,
    Layer,
    LayerChange,
    LayerHandler,
    ModelTraits,
    last_rows_attention,
)
from rag_middle.errors import PromptError
from rag_middle.methods import (
    Method,
    MethodInfo,
    chosen_layers,
    number,
    option,
    require_interface,
)
from rag_middle.tokens import TokenizedPrompt

__all__ = ["WeightedDocuments"]


@dataclass(frozen=True, kw_only=True)
class WeightedDocuments(Method):
    r"""Tokens after the documents weigh a document by how the retriever scored it.

    .. math:: o_i = \sum_j a_{ij} f_{D(j)} v_j, \qquad f_D = e^{s (r_D - \max_D r_D)}

    with ``a`` the attention weights, ``r`` the retriever's scores, and ``f = 1`` for tokens of no
    document. Weights are not renormalised.

    Attributes:
        strength: ``s``; 0 leaves the model as it is.

    Raises:
        MethodConfigError: `strength` is not a finite number.
        PromptError: a document without a score.
        UnsupportedArchitectureError: the attention layers cannot be reached.
    """

    name: ClassVar[str] = "weighted_documents"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="Weighted documents",
        paper="",
        idea="The question attends to documents as much as the retriever trusts them.",
        cost="the attention of the tokens after the documents once more",
        requires="documents with scores; softmax attention",
        can_hurt_when="the retriever trusts the wrong documents",
    )
    needs_documents = True

    conflicts: ClassVar[Mapping[str, str]] = {"self_extend": "Self-Extend keeps every key twice"}

    strength: float = option(1.0, number())

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        require_interface("weighted_documents", traits)
        change = DocumentWeights(factors=tuple(self._factors(prompt) for prompt in prompts))
        return AttentionPlan.uniform(chosen_layers(None, traits), change)

    def _factors(self, prompt: TokenizedPrompt) -> tuple[float, ...]:
        if not prompt.layout.documents:
            return ()
        if prompt.scores is None:
            raise PromptError(
                'WeightedDocuments needs Document.metadata["score"] of every document.'
            )
        best = max(prompt.scores)
        return tuple(exp(self.strength * (score - best)) for score in prompt.scores)

    @property
    def is_neutral(self) -> bool:
        return self.strength == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentWeights(LayerChange):
    """Factors of attention weights after the softmax: per prompt, one for each document."""

    claims = frozenset({"weights"})

    factors: tuple[tuple[float, ...], ...]

    def start(self, layer: Layer) -> LayerHandler:
        return _Handler(self.factors)


class _Handler(LayerHandler):
    def __init__(self, factors: tuple[tuple[float, ...], ...]) -> None:
        self._factors = factors

    def attend(self, context: AttentionContext) -> tuple[Tensor, Tensor | None]:
        output, _ = context.proceed()  # [b, n, h, dv]; the call now has all stored keys and values
        call, layer = context.call, context.layer
        output = output.clone()
        # A sliding layer's cache drops the oldest columns; a static one is longer than its content.
        dropped = max(0, context.stop - call.key.shape[2])
        for group in layer.request.groups:  # rows whose documents lie in the same columns
            after = max(context.start, group.padding + group.layout.suffix_start)
            rows, end = context.stop - after, context.stop - dropped
            if rows <= 0 or not group.layout.documents:
                continue
            key, value = (group.take(x)[:, :, :end] for x in (call.key, call.value))
            weights = last_rows_attention(  # [r, h, rows, end]
                group.take(call.query)[:, :, -rows:],
                key,
                layer.traits,
                padding=torch.full((len(group.rows),), group.padding - dropped, device=key.device),
                sinks=call.options.get("s_aux"),
            )
            change = weights * self._change(context, group.rows, dropped, end)[:, None, None]
            value = value.repeat_interleave(change.shape[1] // value.shape[1], dim=1)
            added = (change.to(value.dtype) @ value).transpose(1, 2)
            output[list(group.rows), -rows:] += added
        return output, None

    def _change(
        self, context: AttentionContext, rows: tuple[int, ...], dropped: int, end: int
    ) -> Tensor:
        """``f - 1`` of every stored column, `[r, end]`."""
        paddings = context.layer.request.row_layouts()
        copies = len(paddings) // len(self._factors)  # rows of each prompt: its beams
        change = torch.zeros(len(rows), end, device=context.call.key.device)
        for index, row in enumerate(rows):
            padding, layout = paddings[row]
            factors = self._factors[row // copies]
            for (start, stop), factor in zip(layout.documents, factors, strict=True):
                columns = (max(0, padding + column - dropped) for column in (start, stop))
                change[index, slice(*columns)] = factor - 1
        return change
