"""Measured order: the best documents where the model was measured to read best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rag_middle.methods.base import Method, MethodInfo, no_default
from rag_middle.methods.ranking import best_at_highest, by_position
from rag_middle.tokens import TokenizedPrompt

if TYPE_CHECKING:
    from rag_middle.methods.base import Runner


@dataclass(frozen=True, kw_only=True)
class MeasuredOrder(Method):
    """The most relevant document goes to the position of highest accuracy, and so on down.

    Relevance is the retriever's score; without scores, the order of the prompt, first is best.
    ``rag-middle diagnose`` measures accuracy by position and writes it as a profile.

    Attributes:
        accuracy: by position, first to last, in any unit. For another number of documents it is
            interpolated between neighbouring positions.

    References:
        AttnRank (arXiv:2508.05128) does the same with attention, which stands in for accuracy
        where no questions with answers are at hand.

    Raises:
        MethodConfigError: fewer than two positions, or values that are not finite.
    """

    name: ClassVar[str] = "measured_order"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="Measured order",
        paper="",
        idea="The most relevant documents stand where the model's accuracy was measured highest.",
        cost="none",
        requires="documents marked in the prompt, with a retriever's scores or in its order",
        can_hurt_when="order carries meaning, or the ranking is poor",
    )
    needs_documents = True

    accuracy: tuple[float, ...] = no_default(
        "measured_order needs the accuracy by position of your model: `rag-middle diagnose` "
        "measures it; then use `profile:rag-middle-diagnosis`.",
        example=(0.5, 0.25, 0.75),
    )

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "accuracy", by_position("MeasuredOrder", "accuracy", self.accuracy)
        )

    def arrange(self, prompt: TokenizedPrompt, runner: Runner) -> Sequence[int]:
        """The document of rank ``r`` goes to the position of rank ``r``."""
        return best_at_highest(prompt, self.accuracy)
