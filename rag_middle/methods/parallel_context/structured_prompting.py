"""Structured prompting (arXiv:2212.06713): many groups, which share one group's attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rag_middle.attention import AttentionPlan, ModelTraits
from rag_middle.methods.base import Method, MethodInfo
from rag_middle.methods.parallel_context.plan import plan_of_blocks
from rag_middle.tokens import TokenizedPrompt

__all__ = ["StructuredPrompting"]


@dataclass(frozen=True, kw_only=True)
class StructuredPrompting(Method):
    r"""Documents are encoded in parallel, end at the same position, and count ``1/D`` each.

    A later token's weight on a document token is proportional to ``e^{a_j} / D`` and on any other
    token to ``e^{a_j}``, normalised together: ``D`` documents together weigh what one would. The
    order of the documents changes nothing.

    With one document, or none, this is the unmodified model.

    References:
        Hao et al., Structured Prompting: Scaling In-Context Learning to 1,000 Examples,
        arXiv:2212.06713, section 3: groups of demonstrations are documents here. The authors'
        code multiplies the weights of the target's own tokens by the number of groups, which is
        the same. It serves BLOOM (ALiBi) only, without a prefix. That rotary models work, is ours:
        documents are aligned to end together for the tokens that read them, as groups are there, a
        prefix is shared, and its tokens count like the target's (in copies of it there would be as
        many as groups). Empty documents do not count.

    Raises:
        UnsupportedArchitectureError: layers without softmax attention, positions that are neither
            rotary nor BLOOM's, or norms behind the rotation.
    """

    name: ClassVar[str] = "structured_prompting"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="Structured prompting",
        paper="arXiv:2212.06713",
        idea="Documents are encoded in parallel; together they get the attention weight of one.",
        cost="less than the unmodified prefill; a second attention call in decode",
        requires="documents marked in the prompt; rotary positions and softmax attention in "
        "every layer, or BLOOM",
        can_hurt_when="one document of many holds the answer, or order carries meaning",
    )
    needs_documents = True
    order_free = True  # all documents begin at the same position

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        """Documents side by side in every layer, each one of many."""
        return plan_of_blocks(self.name, traits, placement="to_end", one_of_many=True)
