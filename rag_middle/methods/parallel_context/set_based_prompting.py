"""Set-based prompting (arXiv:2406.06581): documents are a set, whose order cannot be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rag_middle.attention import AttentionPlan, ModelTraits
from rag_middle.errors import MethodConfigError
from rag_middle.methods.base import Method, MethodInfo
from rag_middle.methods.parallel_context.plan import plan_of_blocks
from rag_middle.tokens import TokenizedPrompt

__all__ = ["SetBasedPrompting"]


@dataclass(frozen=True, kw_only=True)
class SetBasedPrompting(Method):
    """No attention between documents, and shared positions: a prompt holds them as a set.

    Token ``t`` of every document stands at ``P + t`` behind a prefix of ``P`` tokens and sees the
    prefix and its own document up to itself. The suffix begins at ``P`` plus the length of the
    longest document; it and generated tokens see everything before them in one softmax.

    That is what parallel context windows compute, without their indentation: the papers arrive at
    the same attention, one for contexts that are too long, one for answers that no order changes.
    Both names are here so that either paper's results can be repeated by its own.

    With one document, or none, this is the unmodified model.

    Attributes:
        parallel_positions: False for the paper's ablation with the mask alone, in which tokens keep
            their positions and the order still counts.

    References:
        McIlroy-Young et al., Order-Independence Without Fine Tuning, arXiv:2406.06581, section 3;
        mask and positions as the authors' ``attention_mask_editing.py`` has them. Their padding of
        documents to one length changes nothing that is seen. Differs: rotary models only, in
        batches; theirs run one prompt at a time, GPT-2's learned positions too.

    Raises:
        MethodConfigError: `parallel_positions` is neither true nor false.
        UnsupportedArchitectureError: layers without softmax attention, an attention that cannot be
            reached, or, with parallel positions, positions that are not rotary.
    """

    name: ClassVar[str] = "set_based_prompting"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="Set-based prompting",
        paper="arXiv:2406.06581",
        idea="No attention between documents, and shared positions: a set without an order.",
        cost="less than the unmodified prefill, the same decode",
        requires="documents marked in the prompt; rotary positions and softmax attention in "
        "every layer",
        can_hurt_when="documents are many, have to be read together, or order carries meaning",
    )
    needs_documents = True

    parallel_positions: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.parallel_positions, bool):
            raise MethodConfigError(
                "SetBasedPrompting: parallel_positions must be true or false, got "
                f"{self.parallel_positions!r}."
            )

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        """Documents side by side in every layer."""
        placement = "from_start" if self.parallel_positions else "kept"
        return plan_of_blocks(self.name, traits, placement=placement)

    @property
    def order_free(self) -> bool:
        """True where all documents begin at the same position."""
        return self.parallel_positions
