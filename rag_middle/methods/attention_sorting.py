"""Attention sorting (arXiv:2310.01427): what the model attends to most, next to the question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rag_middle.attention import AttentionPlan, ModelTraits
from rag_middle.methods.base import Method, MethodInfo, as_indices, require_count
from rag_middle.methods.ranking import attention_received, check_layers
from rag_middle.tokens import TokenizedPrompt

if TYPE_CHECKING:
    from rag_middle.methods.base import Runner


@dataclass(frozen=True, kw_only=True)
class AttentionSorting(Method):
    """Documents are sorted by the attention they get, which is measured again, and so on.

    The last prompt token's attention to a document's tokens is summed and averaged over heads and
    layers. Documents are sorted by it, the model reads them in the new order, and the answer comes
    after `iterations` such passes. An order that reproduces itself ends the sorting early.

    Attributes:
        iterations: passes over the prompt, each followed by a sort; 0 is neutral.
        best_last: the most attended document comes last, next to the question; otherwise first.
        per_token: sort by the mean over a document's tokens instead of their sum, which favours
            long documents.
        layers: 0-based layers whose attention counts; ``None`` for all with softmax attention.

    References:
        Peysakhovich and Lerer, Attention Sorting Combats Recency Bias In Long Context Language
        Models, arXiv:2310.01427. Follows the authors' code, where attention is summed over a
        document. Documents with equal attention keep their order; there it is left to chance.

    Raises:
        MethodConfigError: `iterations` or a layer is not a whole number from 0 on.
    """

    name: ClassVar[str] = "attention_sorting"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="Attention sorting",
        paper="arXiv:2310.01427",
        idea="Documents are sorted by the attention they get, the most attended ones last.",
        cost="one more prefill per iteration",
        requires="documents marked in the prompt; softmax attention",
        can_hurt_when="order carries meaning, or the model reads the beginning best",
    )
    needs_documents = True

    iterations: int = 3
    best_last: bool = True
    per_token: bool = False
    layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        require_count("AttentionSorting", 0, iterations=self.iterations)
        if self.layers is not None:
            layers = as_indices("AttentionSorting", "layers", self.layers)
            object.__setattr__(self, "layers", layers)

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        """No change in the model, whose attention has to be within reach, though."""
        check_layers("attention_sorting", self.layers, traits)
        return AttentionPlan()

    def arrange(self, prompt: TokenizedPrompt, runner: Runner) -> Sequence[int]:
        """Sort, look again, sort again."""
        order = list(range(len(prompt.layout.documents)))
        if len(order) < 2:
            return order
        for _ in range(self.iterations):
            received = attention_received(
                prompt.select(order), runner, self.layers, per_token=self.per_token
            )
            sign = 1 if self.best_last else -1
            positions = sorted(range(len(order)), key=lambda position: sign * received[position])
            if positions == list(range(len(order))):
                break
            order = [order[position] for position in positions]
        return order

    @property
    def is_neutral(self) -> bool:
        """True without iterations."""
        return self.iterations == 0
