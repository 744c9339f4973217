"""DSAS (arXiv:2510.12251): scores on documents that matter less are scaled down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rag_middle.attention import AttentionContext, AttentionPlan, ModelTraits
from rag_middle.methods.base import MethodInfo
from rag_middle.methods.document_method import Attention, AttentionMethod
from rag_middle.methods.requirements import unsupported
from rag_middle.methods.rules import INDICES, number, option, whole
from rag_middle.tokens import TokenizedPrompt


@dataclass(frozen=True, kw_only=True)
class DSAS(AttentionMethod):
    r"""Documents get a gate each, from the question's attention and from where they stand.

    In every changed layer, with scores ``s`` before the softmax, summed over heads, ``Q`` the
    suffix without its last token and ``t`` that token:

    .. math:: I_m = \sum \text{top-}K_{j \in m}
              \Bigl(\sum_{i \in Q} s_{ij} + |Q|\, s_{tj}\Bigr), \qquad
              r_m = \tfrac12 + \tfrac12 \sigma\bigl(\text{standardised } I_m\bigr)

    The better half of the documents, by rank ``k = 0, 1, ...``, is raised, the more so the nearer
    to the middle of the prompt, and the others are not:

    .. math:: w_m = r_m \left(\frac{\lfloor D/2 \rfloor + 1}{k + 1}\right)^{\alpha \gamma_m}

    with ``gamma`` the mean density of a Gaussian over the prompt's tokens, in units of its standard
    deviation, on the document. Gates are brought to ``beta .. 1``. Then, once per prompt,

    1. contextual gate weighting: scores of the suffix on documents whose gate is below the middle
       of that range are multiplied by the gate;
    2. reciprocal attention suppression: between a document with a gate above the mean and an
       earlier one with a gate below it, or the other way round, scores are multiplied by the
       smaller of the two gates.

    Generated tokens attend as in the unmodified model.

    Attributes:
        alpha: how much rank and position count.
        beta: the smallest gate, above 0; 1 is neutral.
        top_tokens: ``K``; all of a shorter document.
        layers: 0-based layers to change; ``None`` for the upper half.

    References:
        Li et al., DSAS: A Universal Plug-and-Play Framework for Attention Optimization in
        Multi-Document Question Answering, arXiv:2510.12251. Follows the authors' ``DSASAttn`` as it
        is meant; the paper's equations could not be compared. The code itself changes the scores of
        the prompt's last token only, because it writes all other changes to copies of its masks,
        and gives the exponents of the better half to the documents that stand first, by mixing up
        rank and index. A factor below 1 raises scores below 0, there as here. Differs: the question
        is the whole suffix, where theirs is found by the words around it.
    """

    name: ClassVar[str] = "dsas"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="DSAS",
        paper="arXiv:2510.12251",
        idea="Scores on the documents with the least attention from the question are scaled down, "
        "and scores between these and the others.",
        cost="a copy of the keys per document in the changed layers; "
        "no further operations for generated tokens",
        requires="documents marked in the prompt; softmax attention",
        can_hurt_when="the upper half does not attend yet to a document that the answer needs",
    )
    needs_documents = True  # without two documents there is nothing to compare
    claims = frozenset({"weights"})
    conflicts: ClassVar[Mapping[str, str]] = {
        "self_extend": "DSAS scales scores of whole rows, and Self-Extend has two for every key",
        "positional_hidden_states": "the last prompt tokens attend with scaled queries of their "
        "own, and would lose what DSAS adds to their scores. Use one of them",
    }

    alpha: float = option(1.0, number(least=0))
    beta: float = option(0.7, number(above=0, most=1), neutral=1)
    top_tokens: int = option(10, whole(1))
    layers: tuple[int, ...] | None = option(None, INDICES)

    def default_layers(self, traits: ModelTraits) -> range:
        """The upper half."""
        return range(traits.num_layers // 2, traits.num_layers)

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        """Gates in the upper half, each layer its own."""
        plan = super().plan(prompts, traits)
        chunked = [i for i in plan.layers if traits.layers[i].attention_chunk]
        if chunked:
            raise unsupported(
                traits,
                f"dsas compares the question's scores on all documents, and layers "
                f"{chunked} attend in chunks.",
            )
        return plan

    def attend(self, context: AttentionContext) -> Attention:
        """Scores on documents multiplied by their gates."""
        from rag_middle.methods.dsas.attention import attend_through_gates

        return attend_through_gates(self, context)
