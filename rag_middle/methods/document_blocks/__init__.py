"""Methods whose documents are read apart: what they do, and CacheBlend, which begins with that.

They differ in four values: where documents stand, who sees whom, how later tokens weigh what they
read, and which tokens of documents are read once more (`DocumentAttention`, `CacheBlend`).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from rag_middle.attention import (
    ASPECTS,
    AttentionPlan,
    Layer,
    LayerChange,
    LayerHandler,
    ModelTraits,
)
from rag_middle.methods.base import Method, MethodInfo, chosen_layers
from rag_middle.methods.requirements import layers_by_document
from rag_middle.methods.rules import number, option, whole
from rag_middle.tokens import TokenizedPrompt

if TYPE_CHECKING:
    from rag_middle.methods.document_blocks.kernels import Placement

#: What the methods below cost, and what they ask of a model.
_Info = partial(
    MethodInfo,
    cost="about the unmodified prefill; no further operations for generated tokens",
    requires="documents marked in the prompt; rotary positions and softmax attention in every "
    "layer",
    can_hurt_when="documents are many, have to be read together, or order carries meaning",
)

#: Largest share with which a model is checked: three documents of equal length deviate in two.
_CHECKED_SHARE = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentAttention(LayerChange):
    """Documents see the prefix and themselves; later tokens see everything before them.

    Attributes:
        placement: where documents stand.
        temperature: later tokens' scores on documents are divided by it.
        scale: exponent of the documents' mass in their softmax, on top of the temperature (APE).
        one_of_many: that mass is divided by the number of documents (structured prompting).
        from_model: prompts begin at the position that the model was given for their first token,
            not at 0: what is read so stands beside tokens that the model rotates.
    """

    claims = frozenset(ASPECTS)

    placement: Placement
    temperature: float = 1.0
    scale: float = 1.0
    one_of_many: bool = False
    from_model: bool = False

    @property
    def has_kernels(self) -> bool:
        return self.sharpens

    @property
    def sharpens(self) -> bool:
        """Whether later tokens read documents otherwise than by plain softmax or a weight."""
        return not self.temperature == self.scale == 1

    @property
    def moves(self) -> bool:
        """Whether documents are moved after they were read."""
        return self.placement in ("to_end", "to_order")

    def start(self, layer: Layer) -> LayerHandler:
        from rag_middle.methods.document_blocks.attention import DocumentHandler

        return DocumentHandler(layer, self)


class DocumentsApart(Method):
    """`DocumentAttention` in every layer."""

    needs_documents = True

    @property
    @abstractmethod
    def reading(self) -> DocumentAttention:
        """Where documents stand, and how later tokens read them."""

    @property
    def order_free(self) -> bool:
        """True where all documents begin, or all end, at the same position."""
        return self.reading.placement in ("from_start", "to_end", "last")

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        """Documents apart in every layer.

        Raises:
            UnsupportedArchitectureError: as for `layers_by_document`.
        """
        reading = self.reading
        layers = layers_by_document(
            self.name,
            traits,
            repositions=reading.placement != "kept",
            rotates="keys" if reading.moves else None,
        )
        return AttentionPlan.uniform(layers, reading)


@dataclass(frozen=True, kw_only=True)
class NoInterDocumentAttention(DocumentsApart):
    """A document's tokens attend to the prefix and their own document; later tokens to everything.

    The baseline "NIA" of papers on position bias. With one document, or none, this is the
    unmodified model.

    Attributes:
        equal_positions: all documents end where the last one ends, so that later tokens are
            equally far from all of them and their order changes nothing. Otherwise tokens keep
            their positions and the order of the documents still counts.

    References:
        Compared with in Wang et al., arXiv:2407.01100, and before in Ratner et al.,
        arXiv:2212.10947; the mask is all of it.
    """

    name: ClassVar[str] = "no_inter_document_attention"
    info: ClassVar[MethodInfo] = _Info(
        title="No inter-document attention",
        paper="",
        idea="No cross-document attention; positions stay as they are.",
        requires="documents marked in the prompt; softmax attention in every layer",
        can_hurt_when="documents have to be read together, or order carries meaning",
    )

    equal_positions: bool = False

    @property
    def reading(self) -> DocumentAttention:
        return DocumentAttention(placement="last" if self.equal_positions else "kept")


@dataclass(frozen=True, kw_only=True)
class ParallelContextWindows(DocumentsApart):
    """Every document is encoded as if it were the only one, at the same positions.

    A document's tokens attend to the prefix and their own document, which begins at the position
    after the prefix. Later tokens continue after the longest document and attend to everything
    before them in one softmax. The order of the documents changes nothing.

    With one document, or none, this is the unmodified model.

    Attributes:
        right_indentation: for later tokens all documents end where the longest ends, instead of
            beginning where the prefix ends. Documents themselves are read as before.

    References:
        Ratner et al., Parallel Context Windows for Large Language Models, arXiv:2212.10947,
        section 2. Differs from the authors' code: the prefix that all windows share is computed
        and stored once, however long it is (theirs stores all but one token of it once per
        window); grouped-query models and batches work.
    """

    name: ClassVar[str] = "parallel_context_windows"
    info: ClassVar[MethodInfo] = _Info(
        title="Parallel context windows",
        paper="arXiv:2212.10947",
        idea="No cross-document attention; all documents begin at the same position.",
    )

    right_indentation: bool = False

    @property
    def reading(self) -> DocumentAttention:
        return DocumentAttention(placement="to_end" if self.right_indentation else "from_start")


@dataclass(frozen=True, kw_only=True)
class SetBasedPrompting(DocumentsApart):
    """No attention between documents, and shared positions: a prompt holds them as a set.

    Token ``t`` of every document stands at ``P + t`` after a prefix of ``P`` tokens and attends to
    the prefix and its own document up to itself. The suffix begins at ``P`` plus the length of the
    longest document; it and generated tokens attend to everything before them in one softmax.

    That is what parallel context windows compute, without their indentation: the papers arrive at
    the same attention, one for contexts that are too long, one for answers that no order changes.
    Both names are here so that either paper's results can be repeated by its own.

    With one document, or none, this is the unmodified model.

    The paper's ablation with the mask alone is `NoInterDocumentAttention`.

    References:
        McIlroy-Young et al., Order-Independence Without Fine Tuning, arXiv:2406.06581, section 3;
        mask and positions as the authors' ``attention_mask_editing.py`` has them. Their padding of
        documents to one length changes nothing that is attended to. Differs: rotary models only, in
        batches; theirs run one prompt at a time, GPT-2's learned positions too.
    """

    name: ClassVar[str] = "set_based_prompting"
    info: ClassVar[MethodInfo] = _Info(
        title="Set-based prompting",
        paper="arXiv:2406.06581",
        idea="No attention between documents, and shared positions: a set without an order.",
    )

    @property
    def reading(self) -> DocumentAttention:
        return DocumentAttention(placement="from_start")


@dataclass(frozen=True, kw_only=True)
class StructuredPrompting(DocumentsApart):
    r"""Documents are encoded in parallel, end at the same position, and count ``1/D`` each.

    A later token's weight on a document token is proportional to ``e^{a_j} / D`` and on any other
    token to ``e^{a_j}``, normalised together: ``D`` documents together weigh what one would. The
    order of the documents changes nothing.

    With one document, or none, this is the unmodified model.

    References:
        Hao et al., Structured Prompting: Scaling In-Context Learning to 1,000 Examples,
        arXiv:2212.06713, section 3: groups of demonstrations are documents here. The authors'
        code multiplies the weights of the target's own tokens by the number of groups, which is
        the same. It serves BLOOM (ALiBi) only, without a prefix; here rotary models work instead:
        documents are aligned to end together for the tokens that read them, as groups are there, a
        prefix is shared, and its tokens count like the target's (in copies of it there would be as
        many as groups). Empty documents do not count.
    """

    name: ClassVar[str] = "structured_prompting"
    info: ClassVar[MethodInfo] = _Info(
        title="Structured prompting",
        paper="arXiv:2212.06713",
        idea="Documents are encoded in parallel; together they get the attention weight of one.",
        can_hurt_when="one document of many holds the answer, or order carries meaning",
    )

    @property
    def reading(self) -> DocumentAttention:
        return DocumentAttention(placement="to_end", one_of_many=True)


@dataclass(frozen=True, kw_only=True)
class APE(DocumentsApart):
    r"""Documents are encoded in parallel; later tokens' attention to them is sharpened.

    A document's tokens attend to the prefix and their own document, which begins at the position
    after the prefix; later tokens continue after the longest document. With the scores ``a`` of a
    later token, its weights on document tokens are

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
    """

    name: ClassVar[str] = "ape"
    info: ClassVar[MethodInfo] = _Info(
        title="APE",
        paper="arXiv:2502.05431",
        idea="Documents are encoded in parallel; attention to them is sharpened to make up for it.",
        cost="about the unmodified prefill; a second attention call in decode",
        can_hurt_when="documents are read together, or temperature and scale suit another model",
    )

    temperature: float = option(0.9, number(above=0))
    scale: float = option(0.9, number(above=0))

    @property
    def reading(self) -> DocumentAttention:
        return DocumentAttention(
            placement="from_start", temperature=self.temperature, scale=self.scale
        )


@dataclass(frozen=True, kw_only=True)
class CacheBlend(DocumentsApart, LayerChange):
    r"""Documents are read apart, and the tokens that this changes most are recomputed together.

    Keys and values of documents begin as a document KV cache holds them: each document was read
    after the prefix and alone, and its keys are rotated on to its position in this prompt. Up to
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
        UnsupportedGenerationError: the model is not called as a whole.
    """

    name: ClassVar[str] = "cacheblend"
    info: ClassVar[MethodInfo] = _Info(
        title="CacheBlend",
        paper="arXiv:2405.16444",
        idea="Documents come from a KV cache; tokens that deviate most there are recomputed.",
        cost="with a document cache, the first layers and a share of the others; without one, a "
        "second prefill",
        can_hurt_when="the share is small and documents have to be read together",
    )
    claims = frozenset(ASPECTS)

    recompute_share: float = option(0.15, number(least=0, most=1), neutral=1)
    check_layer: int = option(1, whole(1))

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        """Documents apart, and blended from the check layer on."""
        plan = super().plan(prompts, traits)
        chosen_layers((self.check_layer,), traits)
        return AttentionPlan.uniform(plan.layers, self) if self.recompute_share else plan

    def start(self, layer: Layer) -> LayerHandler:
        """Blends what was read apart with what is read together."""
        from rag_middle.methods.document_blocks.blending import BlendingLayer

        return BlendingLayer(layer, self)

    @property
    def reading(self) -> DocumentAttention:
        return DocumentAttention(placement="to_order")

    def for_self_check(self) -> CacheBlend:
        """A smaller share: nothing shows where all tokens that deviate are recomputed."""
        if self.is_neutral:
            return self
        return replace(self, recompute_share=min(self.recompute_share, _CHECKED_SHARE))
