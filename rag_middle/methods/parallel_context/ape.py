"""APE (arXiv:2502.05431): documents encoded in parallel, read with a temperature and a scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rag_middle.attention import AttentionPlan, ModelTraits
from rag_middle.errors import MethodConfigError
from rag_middle.methods.base import Method, MethodInfo, require_finite
from rag_middle.methods.parallel_context.plan import plan_of_blocks
from rag_middle.tokens import TokenizedPrompt

__all__ = ["APE"]


@dataclass(frozen=True, kw_only=True)
class APE(Method):
    r"""Documents are encoded in parallel; later tokens' attention to them is sharpened.

    A document's tokens see the prefix and their own document, beginning at the position behind the
    prefix; later tokens continue after the longest document. With the scores ``a`` of a later
    token, its weights on document tokens are

    .. math:: \Bigl(\sum_j e^{a_j/T}\Bigr)^{S T} \frac{e^{a_j/T}}{\sum_j e^{a_j/T}}

    beside ``e^{a_j}`` on all other tokens, normalised together. The order of the documents
    changes nothing.

    With one document, or none, and ``T = S = 1`` this is the unmodified model.

    Attributes:
        temperature: ``T``; below 1 the attention to documents concentrates.
        scale: ``S``; below 1 documents get less attention in all.

    References:
        Yang et al., APE: Faster and Longer Context-Augmented Generation via Adaptive Parallel
        Encoding, arXiv:2502.05431, section 4. The defaults are those of the authors' demo. Differs
        from the authors' code: on Mistral and Gemma that code applies temperature and scale to the
        prompt instead of to the documents, a mistake that is not repeated here; sinks are
        part of what is not sharpened, soft-capping comes before the temperature.

    Raises:
        MethodConfigError: a temperature or a scale that is not positive and finite.
        UnsupportedArchitectureError: layers without softmax attention, positions that are not
            rotary, or an attention that cannot be reached.
    """

    name: ClassVar[str] = "ape"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="APE",
        paper="arXiv:2502.05431",
        idea="Documents are encoded in parallel; attention to them is sharpened to make up for it.",
        cost="less than the unmodified prefill; a second attention call in decode",
        requires="documents marked in the prompt; rotary positions and softmax attention in "
        "every layer",
        can_hurt_when="documents are read together, or temperature and scale suit another model",
    )
    needs_documents = True
    order_free = True  # all documents begin at the same position

    temperature: float = 0.9
    scale: float = 0.9

    def __post_init__(self) -> None:
        sharpening = {"temperature": self.temperature, "scale": self.scale}
        require_finite("APE", **sharpening)
        for name, value in sharpening.items():
            if value <= 0:
                raise MethodConfigError(f"APE: {name} must be above 0, got {value}.")

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        """Documents side by side in every layer, sharpened for later tokens."""
        return plan_of_blocks(
            self.name,
            traits,
            placement="from_start",
            temperature=self.temperature,
            scale=self.scale,
        )
