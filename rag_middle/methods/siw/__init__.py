"""SIW (arXiv:2512.13109): scale the attention that documents pay to the initial token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from rag_middle.attention import AttentionContext, AttentionPlan, ModelTraits
from rag_middle.errors import MethodConfigError
from rag_middle.methods.base import Method, MethodInfo, chosen_layers
from rag_middle.methods.document_method import Attention, DocumentChange, DocumentMethod
from rag_middle.methods.requirements import require_interface
from rag_middle.methods.rules import INDICES, number, one_of, option, several, truth, whole
from rag_middle.tokens import TokenizedPrompt

Ablation = Literal["renormalised", "redistributed"]
_FLAGS = several(truth, "flags", at_least=1)


def _flags_by_layer(name: str, areas: Any) -> dict[int, tuple[bool, ...]]:
    if not isinstance(areas, Mapping):
        raise MethodConfigError(
            f"{name} must say for each layer which areas are dense, such as "
            f"{{8: (True, False)}}, got {areas!r}."
        )
    INDICES(name, areas)
    return {layer: _FLAGS(f"{name}[{layer}]", flags) for layer, flags in areas.items()}


@dataclass(frozen=True, kw_only=True)
class SIW(DocumentMethod):
    r"""Weights on the initial token become ``alpha`` times as large in a document's rows.

    .. math:: a'_{i,0} = \alpha_{D(i)}\, a_{i,0}

    after the softmax and without renormalising, for every token ``i`` of a document. Documents
    that the last prompt token attends to densely get ``alpha_dense`` (< 1), the others
    ``alpha_sparse`` (> 1). Rows outside the documents keep their weights.

    Attributes:
        alpha_dense: factor for tokens of densely attended documents.
        alpha_sparse: factor for tokens of the other documents.
        layers: 0-based layers to change; ``None`` for those of `dense_areas`, without which for
            the middle half of the model.
        alpha_per_document: one factor per document in prompt order, instead of the two above. All
            prompts of a batch must then have that many documents.
        dense_areas: calibrated areas: for a layer, flags (dense or not) over relative document
            position, first to last. Layers not named are left alone. ``None`` finds the areas in
            the prompt itself.
        top_share: share of the prompt's tokens, by attention from its last token, that count as
            attended to (0.3 in the paper).
        token: 0-based token of the prompt whose weight is scaled; others than the first are the
            paper's ablation (table 3). Rows before it do not see it.
        ablation: ``None``, or one of the paper's appendix B, which keep the sum of a document's
            rows: ``"renormalised"`` divides them by it after the scaling; ``"redistributed"`` gives
            what the initial token loses to the key tokens, which are those that count as attended
            to, in proportion to the last token's attention to them.

    References:
        SIW, arXiv:2512.13109. No public code. The text at hand leaves open when a document is
        dense and which factors to use. Here a document is dense where its share of attended
        tokens is above that of all documents together, sparse where it is below, and left alone
        where it is equal (a document on its own), found in each layer from the attention averaged
        over heads, in the same forward pass; and the factors default to 0.9 and 1.1, which are
        ours and not fitted to any model.
    """

    name: ClassVar[str] = "siw"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="SIW",
        paper="arXiv:2512.13109",
        idea="Documents give the attention sink less where they are attended to, more elsewhere.",
        cost="the log-sum-exp of the changed layers' prompt attention; "
        "no further operations for generated tokens",
        requires="documents marked in the prompt; softmax attention",
        can_hurt_when="factors are far from 1: every later layer then reads something else",
    )

    alpha_dense: float = option(0.9, number(least=0))
    alpha_sparse: float = option(1.1, number(least=0))
    layers: tuple[int, ...] | None = option(None, INDICES)
    alpha_per_document: tuple[float, ...] | None = option(None, several(number(least=0), "factors"))
    dense_areas: Mapping[int, tuple[bool, ...]] | None = option(None, _flags_by_layer)
    top_share: float = option(0.3, number(above=0, below=1))
    token: int = option(0, whole(0))
    ablation: Ablation | None = option(None, one_of(Ablation))

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        """Factors by document where they are known beforehand, else a rule to find them."""
        require_interface("siw", traits)
        for prompt in prompts:
            if self.token >= len(prompt):
                raise MethodConfigError(
                    f"SIW: token must be below {len(prompt)}, the tokens of the prompt; got "
                    f"{self.token}."
                )
        quarter = traits.num_layers // 4
        middle = range(quarter, max(quarter + 1, traits.num_layers - quarter))
        areas = None if self.alpha_per_document is not None else self.dense_areas
        named = tuple(sorted(areas)) if self.layers is None and areas is not None else self.layers
        layers = chosen_layers(named, traits, default=middle)
        if areas is not None:
            layers = tuple(layer for layer in layers if layer in areas)
            if not layers:
                raise MethodConfigError(
                    f"SIW: dense_areas is about layers {sorted(areas)} and layers names others: "
                    "no layer would change."
                )
        return AttentionPlan.by_layer(
            layers, lambda layer: DocumentChange(self, self._factors(layer, prompts))
        )

    def _factors(
        self, layer: int, prompts: tuple[TokenizedPrompt, ...]
    ) -> tuple[tuple[float, ...], ...]:
        """For the documents of each prompt; none where the prompt's own attention decides."""
        if self.alpha_per_document is not None:
            return (self.alpha_per_document,) * len(prompts)
        if self.dense_areas is None:
            return ()
        flags = self.dense_areas[layer]
        # A document falls into the area that its centre falls into.
        alphas = [self.alpha_dense if flag else self.alpha_sparse for flag in flags]
        return tuple(
            tuple(alphas[int((index + 0.5) / count * len(flags))] for index in range(count))
            for count in (len(prompt.layout.documents) for prompt in prompts)
        )

    def attend(self, context: AttentionContext, values: tuple[tuple[float, ...], ...]) -> Attention:
        """The initial token's weight, scaled in the rows of documents."""
        from rag_middle.methods.siw.attention import attend_scaling_initial_token

        return attend_scaling_initial_token(self, context, values)

    def for_self_check(self) -> Method:
        """With the three factors of `alpha_per_document` that change most, of an early token."""
        early = replace(self, token=min(1, self.token))
        if self.alpha_per_document is None:
            return early
        factors = sorted(self.alpha_per_document, key=lambda alpha: abs(alpha - 1))[-3:]
        return replace(early, alpha_per_document=(*factors, 1.0, 1.0)[:3])

    @property
    def is_neutral(self) -> bool:
        """True where every factor is 1."""
        if self.alpha_per_document is not None:
            return all(alpha == 1 for alpha in self.alpha_per_document)
        return self.alpha_dense == self.alpha_sparse == 1
