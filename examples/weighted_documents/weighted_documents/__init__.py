"""Two methods that trust documents as much as the retriever does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp
from typing import ClassVar

import torch

from rag_middle.authoring import (
    Attention,
    AttentionContext,
    DocumentMethod,
    TokenizedPrompt,
    after_documents,
    by_document,
    number,
    option,
)

__all__ = ["TrustedValues", "WeightedDocuments"]


class _Trust(DocumentMethod):
    """The retriever's score of a document, as a factor that is 1 for the best one."""

    needs_scores = True

    strength: float

    def per_document(self, prompt: TokenizedPrompt) -> list[float]:
        scores = prompt.scores or ()
        return [exp(self.strength * (score - max(scores))) for score in scores]


@dataclass(frozen=True, kw_only=True)
class WeightedDocuments(_Trust):
    r"""Tokens after the documents weigh a document by how the retriever scored it.

    .. math:: o_i = \sum_j a_{ij} f_{D(j)} v_j, \qquad f_D = e^{s (r_D - \max_D r_D)}

    with ``a`` the attention weights, ``r`` the retriever's scores, and ``f = 1`` for tokens of no
    document. Weights are not renormalised.

    Attributes:
        strength: ``s``; 0 leaves the model as it is.
    """

    name: ClassVar[str] = "weighted_documents"
    conflicts: ClassVar[Mapping[str, str]] = {"self_extend": "Self-Extend keeps every key twice"}

    strength: float = option(1.0, number(), neutral=0)

    def attend(self, context: AttentionContext, values: tuple[tuple[float, ...], ...]) -> Attention:
        output, _ = context.proceed()  # [b, n, h, dv]; the call now has all stored keys and values
        context.call.value = context.call.value * by_document(context, values)
        weighted, _ = context.attention.attend(context.call)
        return torch.where(after_documents(context), weighted, output), None


@dataclass(frozen=True, kw_only=True)
class TrustedValues(_Trust):
    r"""Every token reads the values of a document times how the retriever scored it.

    Values are scaled before they are cached, which costs nothing later. `WeightedDocuments` says
    what the factor is.

    Attributes:
        strength: ``s``; 0 leaves the model as it is.
    """

    name: ClassVar[str] = "trusted_values"
    claims = frozenset({"values"})

    strength: float = option(1.0, number(), neutral=0)

    def attend(self, context: AttentionContext, values: tuple[tuple[float, ...], ...]) -> Attention:
        context.call.value = context.call.value * by_document(context, values)
        return context.proceed()
