"""Parallel context windows (PCW, arXiv:2212.10947): documents side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rag_middle.attention import AttentionPlan, ModelTraits
from rag_middle.methods.base import Method, MethodInfo
from rag_middle.methods.parallel_context.plan import plan_of_blocks
from rag_middle.tokens import TokenizedPrompt

__all__ = ["ParallelContextWindows"]


@dataclass(frozen=True, kw_only=True)
class ParallelContextWindows(Method):
    """Every document is encoded as if it were the only one, at the same positions.

    A document's tokens see the prefix and their own document, beginning at the position behind the
    prefix. Later tokens continue after the longest document and see everything before them in
    one softmax. The order of the documents changes nothing.

    With one document, or none, this is the unmodified model.

    Attributes:
        right_indentation: later tokens see all documents end where the longest ends, instead of
            begin where the prefix ends. Documents themselves are read as before.

    References:
        Ratner et al., Parallel Context Windows for Large Language Models, arXiv:2212.10947,
        section 2. Differs from the authors' code: the prefix that all windows share is computed
        and stored once, however long it is (theirs stores all but one token of it once per
        window); grouped-query models and batches work.

    Raises:
        UnsupportedArchitectureError: layers without softmax attention, positions that are not
            rotary, or an attention that cannot be reached.
    """

    name: ClassVar[str] = "parallel_context_windows"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="Parallel context windows",
        paper="arXiv:2212.10947",
        idea="No cross-document attention; all documents begin at the same position.",
        cost="less than the unmodified prefill, the same decode",
        requires="documents marked in the prompt; rotary positions and softmax attention in "
        "every layer",
        can_hurt_when="documents are many, have to be read together, or order carries meaning",
    )
    needs_documents = True
    order_free = True  # all documents begin at the same position

    right_indentation: bool = False

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        """Documents side by side in every layer."""
        placement = "to_end" if self.right_indentation else "from_start"
        return plan_of_blocks(self.name, traits, placement=placement)
