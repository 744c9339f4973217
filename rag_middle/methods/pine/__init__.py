"""PINE (arXiv:2407.01100): attention that does not depend on the order of the documents.

Section 3 of the paper, part by part: how much a document matters to a query is in
`kernels/importance.py`, at which positions documents stand in `kernels/tables.py`, and the
attention of prefix, documents and later tokens in `kernels/attend.py`. `attention.py` brings rows,
padding and caches; `kernels/launch.py` and the two files beside it are the same for Triton.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from rag_middle.attention import ASPECTS, AttentionPlan, Layer, LayerHandler, ModelTraits
from rag_middle.methods.base import MethodInfo
from rag_middle.methods.document_method import AttentionMethod
from rag_middle.methods.requirements import layers_by_document
from rag_middle.methods.rules import one_of, option
from rag_middle.tokens import TokenizedPrompt

if TYPE_CHECKING:
    from rag_middle.methods.base import Runner
    from rag_middle.methods.pine.kernels.importance import Ranking

__all__ = ["PINE"]

Ablation = Literal["reversed", "no_reassignment"]
_RANKINGS: Mapping[Ablation | None, Ranking] = {
    None: "importance",
    "reversed": "reversed",
    "no_reassignment": "prompt",
}


@dataclass(frozen=True, kw_only=True)
class PINE(AttentionMethod):
    """Position-invariant inference: documents attend to each other, ranked by each query.

    A document token sees the prefix, its own document causally and all other documents entirely;
    later tokens see everything before them. Every query places the documents by their importance
    to it, the most important nearest: for a query document the summed, for a later token its own
    attention to a document's tokens, from queries and keys without position embedding, averaged
    over the document. The output then does not depend on the order of the documents.

    Documents of equal importance (in the first layer: the same tokens in another order) need a
    rule, and sums in another order round differently. So that neither brings the order of the
    prompt back, the model reads the documents sorted by their tokens.

    With one document, or none, this is the unmodified model. NoPE layers have no positions to
    re-assign; only what their queries see changes. In sliding-window layers the window applies
    to the re-assigned distances.

    Attributes:
        ablation: ``None``, or one of the paper's (section 3.4, figure 4b): ``"reversed"`` puts the
            least important document nearest; ``"no_reassignment"`` puts all others, in the
            order of the prompt, before the query's own, so that the output depends on that order.

    References:
        Wang et al., Eliminating Position Bias of Language Models, arXiv:2407.01100, section 3.
        Follows the authors' code, which this reaches to rounding. Differs: documents are sorted,
        where the authors leave ties to the order of the prompt. `rag_middle.attention.applied`
        alone sorts nothing: there, the order that is given decides ties. Their code has no
        ablations. Without re-assignment documents still attend to each other, as in the paper,
        whose accuracy then depends on the answer's position; that each is the last one for its
        own queries is our reading.
    """

    name: ClassVar[str] = "pine"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="PINE",
        paper="arXiv:2407.01100",
        idea="Documents attend to each other both ways, ordered by importance to each query.",
        cost="1.5 times the first token (SmolLM2-135M, 1,400 tokens, CPU, float32)",
        requires="documents marked in the prompt; softmax attention in every layer",
        can_hurt_when="order carries meaning, documents contradict each other, or a good ranking "
        "puts the best document where the model reads best",
    )
    needs_documents = True
    claims = frozenset(ASPECTS)
    defers_rotation = True
    conflicts: ClassVar[Mapping[str, str]] = {
        "*": "it decides positions and visibility, and a change by document order would undo its "
        "invariance. Use it alone"
    }

    ablation: Ablation | None = option(None, one_of(Ablation))

    @property
    def order_free(self) -> bool:
        """True where documents rank each other by what they say: not by the order given."""
        return self.ablation != "no_reassignment"

    def arrange(self, prompt: TokenizedPrompt, runner: Runner) -> Sequence[int]:
        """By token ids: any order will do that depends on the documents alone."""
        if self.ablation == "no_reassignment":
            return super().arrange(prompt, runner)
        documents = prompt.documents_ids
        return sorted(range(len(documents)), key=documents.__getitem__)

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        """Document order in every layer."""
        return AttentionPlan.uniform(layers_by_document("pine", traits, rotates="queries"), self)

    @property
    def has_kernels(self) -> bool:
        return self.ablation is None  # they know no other ranking

    def start(self, layer: Layer) -> LayerHandler:
        """Ranks documents in one layer."""
        from rag_middle.methods.pine.attention import PineAttention

        return PineAttention(layer, _RANKINGS[self.ablation])
