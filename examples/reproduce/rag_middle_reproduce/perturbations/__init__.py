"""What the papers perturb in one document's attention, or in that of all documents.

Which of the two makes attention fall off in the middle, the causal mask (through the hidden states
that it shapes) or the position embedding (arXiv:2406.02536, appendix C)? Each is changed for the
gold document alone, and for another comparison the attention to one document is doubled. And what
does PINE (arXiv:2407.01100) owe to documents that see each other, what to their positions?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from rag_middle import MethodConfigError
from rag_middle.attention import AttentionPlan, ModelTraits
from rag_middle.methods.base import Method, MethodInfo, chosen_layers
from rag_middle.methods.requirements import require_interface, require_rope, unsupported
from rag_middle.methods.rules import number, one_of, option, whole
from rag_middle.tokens import TokenizedPrompt
from rag_middle_reproduce.perturbations.attention import Crop, Move, Multiply, Mutual

__all__ = [
    "GOLD",
    "PERTURBATIONS",
    "CroppedMask",
    "DoubledAttention",
    "MovedPositions",
    "MutualDocuments",
]

#: The id by which prompts name their gold document.
GOLD = "gold"


@dataclass(frozen=True, kw_only=True)
class _Perturbation(Method):
    conflicts: ClassVar[dict[str, str]] = {"*": "a perturbation is compared with the plain model"}
    needs_documents = True

    document: int | None = option(None, whole(0))

    def for_self_check(self) -> Method:
        """Of a document of the check's own prompts."""
        return replace(self, document=1)

    def _documents(
        self, prompts: Sequence[TokenizedPrompt], traits: ModelTraits
    ) -> tuple[int, ...]:
        """The perturbed document of each prompt."""
        require_interface(self.name, traits)
        for layer in traits.layers.values():
            if layer.sliding_window or layer.attention_chunk or layer.sinks:
                raise unsupported(
                    traits,
                    f"{self.name} looks at whole prompts, and layer {layer.layer} has a window, "
                    "chunks or attention sinks of its own.",
                )
        return tuple(self._document(prompt) for prompt in prompts)

    def _document(self, prompt: TokenizedPrompt) -> int:
        count = len(prompt.layout.documents)
        if self.document is not None:
            if self.document < count:
                return self.document
            raise MethodConfigError(
                f"{self.name}: document must be below {count}, the number of documents; got "
                f"{self.document}."
            )
        if GOLD not in prompt.document_ids:
            raise MethodConfigError(
                f"{self.name} perturbs the document whose id is {GOLD!r}, and there is none: pass "
                "its 0-based position as document, or ask the task json_pairs."
            )
        return prompt.document_ids.index(GOLD)


@dataclass(frozen=True, kw_only=True)
class CroppedMask(_Perturbation):
    """The document's tokens see the first token and themselves, causally, in the lower layers.

    Their hidden states then are those of the beginning of a prompt, while rotary positions and
    all other tokens' attention stay.

    Attributes:
        document: its 0-based position; None for the gold one, by its id.
        layers: 0-based; by default the first eight (the paper's layers 1 to 8).

    References:
        arXiv:2406.02536, appendix C ("crop mask").

    Raises:
        MethodConfigError: parameters that make no sense, or a document that a prompt lacks.
    """

    name: ClassVar[str] = "cropped_mask"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="Cropped mask",
        paper="arXiv:2406.02536",
        idea="One document sees nothing but itself and the first token, in the lower layers.",
        cost="one document's attention once more",
        requires="softmax attention over the whole prompt, through the attention interface",
        can_hurt_when="always: it is for analysis",
    )

    layers: tuple[int, ...] = tuple(range(8))

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        documents = self._documents(prompts, traits)
        layers = chosen_layers([i for i in self.layers if i < traits.num_layers], traits)
        return AttentionPlan.uniform(layers, Crop(documents=documents))


@dataclass(frozen=True, kw_only=True)
class MovedPositions(_Perturbation):
    """The last token attends to the document as if its positions were elsewhere.

    Keys of the document are rotated to the beginning or to the end of all documents, for the query
    of the last prompt token and of generated ones; all other rows attend as ever.

    Attributes:
        document: its 0-based position; None for the gold one, by its id.
        to: ``"beginning"``: right behind the text before the documents; ``"end"``: right before
            the text behind them.

    References:
        arXiv:2406.02536, appendix C ("PE to beginning", "PE to end").

    Raises:
        MethodConfigError: parameters that make no sense, or a document that a prompt lacks.
    """

    name: ClassVar[str] = "moved_positions"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="Moved positions",
        paper="arXiv:2406.02536",
        idea="The last token attends to one document at other positions.",
        cost="the last token's attention once more",
        requires="rotary positions; softmax attention over the whole prompt",
        can_hurt_when="always: it is for analysis",
    )

    to: Literal["beginning", "end"] = option("beginning", one_of(Literal["beginning", "end"]))

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        documents = self._documents(prompts, traits)
        require_rope(self.name, traits)
        for layer in traits.layers.values():
            if layer.uses_rope and (layer.rotary is None or layer.norms_after_rope):
                raise unsupported(traits, f"{self.name} cannot turn rotated keys of this model.")
        layers = chosen_layers(None, traits, rotated=True)
        return AttentionPlan.uniform(layers, Move(documents=documents, to=self.to))


@dataclass(frozen=True, kw_only=True)
class DoubledAttention(_Perturbation):
    r"""The last token's attention weights on the document are multiplied after the softmax.

    .. math:: o = \sum_j f_j a_j v_j, \qquad f_j = f \text{ in the document, else } 1

    for the last prompt token and generated ones, in all heads; all other rows attend as ever.
    Whether the paper divides by the sum afterwards, and in which layers it doubles, it does not
    say: by default weights are not renormalised, and all layers change.

    Attributes:
        document: its 0-based position; None for the gold one, by its id.
        factor: of its weights; 1 changes nothing.
        layers: 0-based; None for all.
        renormalise: divide the weights by their sum, so that they add up to 1 again.

    References:
        arXiv:2406.02536, section 3.1, figure 6.

    Raises:
        MethodConfigError: parameters that make no sense, or a document that a prompt lacks.
    """

    name: ClassVar[str] = "doubled_attention"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="Doubled attention",
        paper="arXiv:2406.02536",
        idea="The last token weighs one document more.",
        cost="the last token's attention once more",
        requires="softmax attention over the whole prompt, through the attention interface",
        can_hurt_when="always: it is for analysis",
    )

    factor: float = option(2.0, number(least=0))
    layers: tuple[int, ...] | None = None
    renormalise: bool = False

    @property
    def is_neutral(self) -> bool:
        return self.factor == 1

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        documents = self._documents(prompts, traits)
        change = Multiply(documents=documents, factor=self.factor, renormalise=self.renormalise)
        return AttentionPlan.uniform(chosen_layers(self.layers, traits), change)


@dataclass(frozen=True, kw_only=True)
class MutualDocuments(_Perturbation):
    """Documents attend to each other both ways, at the positions that they have in the prompt.

    A document's token sees the prefix, its own document up to itself and all other documents; later
    tokens see everything before them. It is PINE without re-assignment of positions in the second
    of two readings: the first, PINE's ablation ``"no_reassignment"``, puts each document last for
    its own queries, here it stays where it is, before and behind others.

    References:
        arXiv:2407.01100, section 4.3, figure 4 b.

    Raises:
        UnsupportedArchitectureError: windows, chunks or sinks; an attention out of reach.
    """

    name: ClassVar[str] = "mutual_documents"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="Mutual documents",
        paper="arXiv:2407.01100",
        idea="Documents attend to each other both ways, at their own positions.",
        cost="the documents' attention once more, as matrices",
        requires="softmax attention over the whole prompt, through the attention interface",
        can_hurt_when="always: it is for analysis",
    )

    def _document(self, prompt: TokenizedPrompt) -> int:
        return 0  # all are changed

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        change = Mutual(documents=self._documents(prompts, traits))
        return AttentionPlan.uniform(chosen_layers(None, traits), change)


#: By the name that a configuration gives them.
PERTURBATIONS: Mapping[str, type[Method]] = {
    method.name: method
    for method in (CroppedMask, DoubledAttention, MovedPositions, MutualDocuments)
}
