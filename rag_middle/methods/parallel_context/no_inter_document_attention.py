"""No inter-document attention: documents see the prefix and themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rag_middle.attention import AttentionPlan, ModelTraits
from rag_middle.methods.base import Method, MethodInfo
from rag_middle.methods.parallel_context.plan import plan_of_blocks
from rag_middle.tokens import TokenizedPrompt

__all__ = ["NoInterDocumentAttention"]


@dataclass(frozen=True, kw_only=True)
class NoInterDocumentAttention(Method):
    """A document's tokens see the prefix and their own document; later tokens see everything.

    The baseline "NIA" of papers on position bias. With one document, or none, this is the
    unmodified model.

    Attributes:
        equal_positions: all documents end where the last one ends, so that later tokens see all of
            them equally near and their order changes nothing. Otherwise tokens keep their
            positions and the order of the documents still counts.

    References:
        Compared with in Wang et al., arXiv:2407.01100, and before in Ratner et al.,
        arXiv:2212.10947; the mask is all of it.

    Raises:
        UnsupportedArchitectureError: layers without softmax attention, an attention that cannot be
            reached, or, with `equal_positions`, positions that are not rotary.
    """

    name: ClassVar[str] = "no_inter_document_attention"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="No inter-document attention",
        paper="",
        idea="No cross-document attention; positions stay as they are.",
        cost="less than the unmodified prefill, the same decode",
        requires="documents marked in the prompt; softmax attention in every layer",
        can_hurt_when="documents have to be read together, or order carries meaning",
    )
    needs_documents = True

    equal_positions: bool = False

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        """Documents apart in every layer."""
        placement = "last" if self.equal_positions else "kept"
        return plan_of_blocks(self.name, traits, placement=placement)
