"""RoToR (arXiv:2502.08662): order-free attention with one order of documents in a circle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from rag_middle.attention import ASPECTS, AttentionPlan, Layer, LayerHandler, ModelTraits
from rag_middle.errors import PromptError
from rag_middle.methods.base import MethodInfo
from rag_middle.methods.document_method import AttentionMethod
from rag_middle.methods.requirements import layers_by_document
from rag_middle.methods.rules import number, one_of, option
from rag_middle.tokens import TokenizedPrompt

if TYPE_CHECKING:
    from torch import Tensor

    from rag_middle.methods.base import Runner

__all__ = ["RoToR"]

Order = Literal["lexical", "frequency", "score", "given"]


@dataclass(frozen=True, kw_only=True)
class RoToR(AttentionMethod):
    r"""Documents attend to each other, in a circle whose order does not depend on the prompt.

    A document token sees the prefix, its own document causally and all other documents entirely;
    later tokens see everything before them. One global order serves all queries: later tokens see
    the documents in it, and a document as the query sees itself last and the others in the order in
    which the circle runs up to it. The output then does not depend on the order of the prompt.

    Attributes:
        order: the global order, from the document nearest the question on. ``"lexical"``: by token
            ids. ``"frequency"``: by how often tokens occur in all documents, documents that begin
            with frequent ones first; ties are decided lexically. ``"score"``: by the retriever's
            scores, best nearest; ties lexically. ``"given"``: the prompt's own, last nearest, on
            which the output then does depend.
        routing: read the prompt also as it is given, by the unmodified model, and take each token
            from the reading that is surer of it: from the unmodified model where its highest
            probability is larger by more than `routing`. For prompts in which order may matter.
            ``None`` for not.

    With one document, or none, this is the unmodified model.

    References:
        Yoon et al., RoToR: Towards More Reliable Responses for Order-Invariant Inputs,
        arXiv:2502.08662. Reaches the authors' code to rounding, lexical and given orders.
        Differs: their frequency order leaves ties to the order of the prompt, and treats some
        tokens as padding; routing is done token by token, where they choose between two answers.

    Raises:
        PromptError: order by score, of documents without scores.
    """

    name: ClassVar[str] = "rotor"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="RoToR",
        paper="arXiv:2502.08662",
        idea="Documents attend to each other both ways, in one order that runs in a circle.",
        cost="attention of document tokens twice in the prefill; "
        "no further operations for generated tokens",
        requires="documents marked in the prompt; softmax attention in every layer",
        can_hurt_when="order carries meaning, or documents are numbered in their text",
    )
    needs_documents = True
    claims = frozenset(ASPECTS)
    has_kernels = True
    conflicts: ClassVar[Mapping[str, str]] = {
        "*": "it decides positions and visibility, and a change by document order would undo its "
        "invariance. Use it alone"
    }

    order: Order = option("lexical", one_of(Order))
    routing: float | None = option(None, number())

    def arrange(self, prompt: TokenizedPrompt, runner: Runner) -> Sequence[int]:
        """The global order, its beginning next to the question."""
        if self.routing is not None:
            return range(len(prompt.layout.documents))  # one of two readings is as given
        return self._arranged(prompt)

    def branches(self, prompt: TokenizedPrompt, runner: Runner) -> Sequence[Sequence[int]]:
        """As given for the unmodified model, and in the global order."""
        if self.routing is None:
            return super().branches(prompt, runner)
        return range(len(prompt.layout.documents)), self._arranged(prompt)

    def combine(self, logits: Tensor) -> Tensor:
        """Those of the surer reading."""
        in_order, in_circle = logits.log_softmax(-1).unbind(-2)
        margin = 0.0 if self.routing is None else self.routing
        surer = in_order.exp().amax(-1) > in_circle.exp().amax(-1) + margin
        return in_order.where(surer[..., None], in_circle)

    @property
    def combines(self) -> bool:
        """True with routing."""
        return self.routing is not None

    def _arranged(self, prompt: TokenizedPrompt) -> list[int]:
        documents = prompt.documents_ids
        keys: list[tuple[object, ...]] = [(document,) for document in documents]
        if self.order == "given":
            return list(range(len(documents)))
        if self.order == "score" and documents:
            if prompt.scores is None:
                raise PromptError(
                    "rotor orders documents by score, and not all of them have one. Set "
                    'Document.metadata["score"], or use RoToR(order="lexical").'
                )
            keys = [(-score, ids) for score, ids in zip(prompt.scores, documents, strict=True)]
        if self.order == "frequency":
            counts = Counter(token for document in documents for token in document)
            keys = [(tuple(-counts[token] for token in ids), ids) for ids in documents]
        nearest_first = sorted(range(len(documents)), key=lambda index: keys[index])
        return nearest_first[::-1]

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        """A circle of documents in every layer."""
        return AttentionPlan.uniform(layers_by_document("rotor", traits, rotates="keys"), self)

    def start(self, layer: Layer) -> LayerHandler:
        """Of two branches, the first is read by the unmodified model."""
        from rag_middle.methods.rotor.attention import CircleAttention

        return CircleAttention(layer, alternating=self.combines)

    @property
    def order_free(self) -> bool:
        """True, unless documents are ordered by what comes with them."""
        return self.order in ("lexical", "frequency")
