"""CacheBlend (arXiv:2405.16444): documents from a cache, and the tokens that deviate recomputed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from rag_middle.attention import AttentionPlan, ModelTraits
from rag_middle.methods.base import Method, MethodInfo, chosen_layers
from rag_middle.methods.requirements import layers_by_document
from rag_middle.methods.rules import number, option, whole
from rag_middle.tokens import TokenizedPrompt

__all__ = ["CacheBlend"]

#: Largest share with which a model is checked: three documents of equal length deviate in two.
_CHECKED_SHARE = 0.3


@dataclass(frozen=True, kw_only=True)
class CacheBlend(Method):
    r"""Documents are read apart, and the tokens that this changes most are recomputed together.

    Keys and values of documents begin as a document KV cache holds them: each document was read
    behind the prefix and alone, and its keys are rotated on to its position in this prompt. Up to
    the check layer ``c`` all tokens are computed as ever. There a document token ``t`` deviates by

    .. math:: \delta_t = \lVert k_t - \tilde k_t \rVert^2 + \lVert v_t - \tilde v_t \rVert^2

    over all heads, with ``k``, ``v`` of the whole prompt and ``\tilde k``, ``\tilde v`` from the
    cache. The tokens that deviate most are recomputed in layer ``c`` and all later ones: their
    queries attend to everything before them, and their keys and values replace those from the
    cache. Tokens after the documents are always computed.

    With a `DocumentCache` only the tokens that are recomputed pass the layers after the check
    layer. Without one the whole prompt is read twice, to the same result.

    With a share of 1, one document, or none, this is the unmodified model. With a share of 0
    nothing is recomputed, whatever the check layer: tokens after the documents attend to documents
    as parallel context windows read them, at the documents' positions in the prompt.

    Attributes:
        recompute_share: of the tokens in documents, from 0 to 1, rounded down to whole tokens.
        check_layer: 0-based layer in which tokens are compared, from 1 on: keys and values of layer
            0 depend on no other token.

    References:
        Yao et al., CacheBlend: Fast Large Language Model Serving for RAG with Cached Knowledge
        Fusion, arXiv:2405.16444, section 4; the authors' code, YaoJiayi/CacheBlend, and its
        successor in LMCache/LMCache (``lmcache/v1/compute/blend``). Differs: both keys and values
        are compared, as the paper defines the deviation (the first code compares values, LMCache
        keys); one check layer, as in both codes, where the paper narrows the choice down over
        several layers; shares are of the tokens in documents; in the check layer tokens that are
        not chosen keep what the cache holds, as in LMCache.

    Raises:
        MethodConfigError: a share outside 0 to 1, or a check layer that the model does not have.
        UnsupportedArchitectureError: layers without softmax attention, positions that are not
            rotary, norms behind the rotation, or an attention that cannot be reached.
        UnsupportedGenerationError: the model is not called as a whole.
    """

    name: ClassVar[str] = "cacheblend"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="CacheBlend",
        paper="arXiv:2405.16444",
        idea="Documents come from a KV cache; tokens that deviate most there are recomputed.",
        cost="with a document cache, the first layers and a share of the others; without one, a "
        "second prefill",
        requires="documents marked in the prompt; rotary positions and softmax attention in "
        "every layer",
        can_hurt_when="the share is small and documents have to be read together",
    )
    needs_documents = True  # without documents there is nothing in the cache

    recompute_share: float = option(0.15, number(least=0, most=1))
    check_layer: int = option(1, whole(1))

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        """Documents apart, and blended from the check layer on."""
        from rag_middle.methods.cacheblend.attention import BlendedDocuments
        from rag_middle.methods.parallel_context.attention import DocumentBlocks

        layers = layers_by_document(self.name, traits, rotates="keys")
        chosen_layers((self.check_layer,), traits)
        if not self.recompute_share:
            return AttentionPlan.uniform(layers, DocumentBlocks(placement="to_order"))
        return AttentionPlan.uniform(
            layers, BlendedDocuments(share=self.recompute_share, check_layer=self.check_layer)
        )

    @property
    def is_neutral(self) -> bool:
        """True where everything is recomputed."""
        return self.recompute_share == 1

    def for_self_check(self) -> CacheBlend:
        """A smaller share: nothing shows where all tokens that deviate are recomputed."""
        if self.is_neutral:
            return self
        return replace(self, recompute_share=min(self.recompute_share, _CHECKED_SHARE))
