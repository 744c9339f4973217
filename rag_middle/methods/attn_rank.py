"""AttnRank (arXiv:2508.05128): the best documents where the model looks most."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rag_middle.attention import AttentionPlan, ModelTraits
from rag_middle.errors import MethodConfigError
from rag_middle.methods.base import Method, MethodInfo
from rag_middle.methods.ranking import (
    attention_received,
    best_at_highest,
    best_first,
    by_position,
    check_layers,
)
from rag_middle.tokens import TokenizedPrompt

if TYPE_CHECKING:
    from rag_middle.methods.base import Runner


@dataclass(frozen=True, kw_only=True)
class AttnRank(Method):
    """The most relevant document goes to the position that gets most attention, and so on down.

    Relevance is the retriever's score; without scores, the order of the prompt, first is best.
    How much attention a position gets is a property of the model and the form of its prompts,
    measured once with `measured` over a few prompts whose documents stand at every position.

    Attributes:
        profile: attention by position, first to last, in any unit. For another number of documents
            it is interpolated between neighbouring positions. ``None`` measures it on the prompt at
            hand, one pass per document.

    References:
        Yi et al., Attention Basin: Why Contextual Position Matters in Large Language Models,
        arXiv:2508.05128. Differs: the profile is measured with each document once at every
        position, so that what the documents say cancels out, and may be measured without a
        calibration set.

    Raises:
        MethodConfigError: a profile of fewer than two positions, or with values that are not
            finite.
    """

    name: ClassVar[str] = "attn_rank"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="AttnRank",
        paper="arXiv:2508.05128",
        idea="The most relevant documents stand where the model's attention is measured highest.",
        cost="none with a profile; one more prefill per document without",
        requires="documents marked in the prompt; softmax attention where no profile is given",
        can_hurt_when="order carries meaning, or the ranking or the profile is poor",
    )
    needs_documents = True

    profile: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.profile is None:
            return
        object.__setattr__(self, "profile", by_position("AttnRank", "profile", self.profile))

    @classmethod
    def measured(cls, prompts: Iterable[TokenizedPrompt], runner: Runner) -> AttnRank:
        """With the profile of a model, averaged over prompts with equally many documents.

        Args:
            prompts: a few dozen of the kind that will be asked; each takes as many passes as it
                has documents. ``RagMiddleModel.encode`` makes them.
            runner: of the model, ``RagMiddleModel.runner``.

        Raises:
            MethodConfigError: no prompts, prompts with different numbers of documents, or with
                fewer than two.
            UnsupportedArchitectureError: the attention layers cannot be reached.
        """
        profiles = [_profile(prompt, runner) for prompt in prompts]
        counts = {len(profile) for profile in profiles}
        if len(counts) != 1 or min(counts) < 2:
            raise MethodConfigError(
                "AttnRank.measured needs prompts with the same number of documents, two or more; "
                f"it got {len(profiles)} prompts with {sorted(counts) or 'no'} documents."
            )
        return cls(
            profile=tuple(sum(position) / len(profiles) for position in zip(*profiles, strict=True))
        )

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        """No change in the model; without a profile its attention has to be within reach."""
        if self.profile is None:
            check_layers("attn_rank", None, traits)
        return AttentionPlan()

    def arrange(self, prompt: TokenizedPrompt, runner: Runner) -> Sequence[int]:
        """The document of rank ``r`` goes to the position of rank ``r``."""
        if len(prompt.layout.documents) < 2:
            return best_first(prompt)
        profile = _profile(prompt, runner) if self.profile is None else self.profile
        return best_at_highest(prompt, profile)


def _profile(prompt: TokenizedPrompt, runner: Runner) -> list[float]:
    """Attention per token by position, each document having stood in every position."""
    count = len(prompt.layout.documents)
    totals = [0.0] * count
    for turn in range(count):
        order = [*range(turn, count), *range(turn)]
        received = attention_received(prompt.select(order), runner, None, per_token=True)
        totals = [total + amount for total, amount in zip(totals, received, strict=True)]
    return [total / count for total in totals]
