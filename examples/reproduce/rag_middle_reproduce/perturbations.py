"""What the papers perturb in one document's attention, or in that of all documents.

Which of the two makes attention fall off in the middle, the causal mask (through the hidden states
that it shapes) or the position embedding (arXiv:2406.02536, appendix C)? Each is changed for the
gold document alone, and for another comparison the attention to one document is doubled. And what
does PINE (arXiv:2407.01100) owe to documents that see each other, what to their positions?
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from rag_middle import MethodConfigError
from rag_middle.authoring import (
    Attention,
    AttentionContext,
    AttentionPlan,
    DocumentMethod,
    Method,
    ModelTraits,
    TokenizedPrompt,
    last_rows_attention,
    number,
    one_of,
    option,
    require_known_rotation,
    require_rope,
    unsupported,
    whole,
)
from rag_middle.layout import PromptLayout
from rag_middle.ops.rope import rotate

#: The id by which prompts name their gold document.
GOLD = "gold"


@dataclass(frozen=True, kw_only=True)
class _Row:
    """A prompt in an attention call; columns count its left padding."""

    context: AttentionContext
    index: int
    padding: int
    layout: PromptLayout

    @property
    def columns(self) -> range:
        """Of all its tokens so far."""
        return range(self.padding, self.context.stop)

    @property
    def last(self) -> range:
        """The last prompt token and what was generated after it, as far as they are queries."""
        context = self.context
        return range(max(context.start, context.layer.request.width - 1), context.stop)

    def weights(self, queries: range, columns: Sequence[int], key: Tensor | None = None) -> Tensor:
        """Attention weights `[h, q, n]` of queries over columns, of which they are the last.

        Args:
            queries: columns of them.
            columns: that they see, each up to itself.
            key: `[g, N, d]` in place of the call's.
        """
        call, start = self.context.call, self.context.start
        query = call.query[self.index, :, queries.start - start : queries.stop - start]
        key = call.key[self.index] if key is None else key
        traits = self.context.layer.traits
        return last_rows_attention(query[None], key[None, :, [*columns]], traits)[0]

    def weighed(self, weights: Tensor, columns: Sequence[int]) -> Tensor:
        """The output of weights, `[q, h, dv]`."""
        values = self.context.call.value[self.index][:, [*columns]]  # [g, n, dv]
        values = values.repeat_interleave(len(weights) // len(values), dim=0)
        return (weights.to(values.dtype) @ values).transpose(0, 1)


@dataclass(frozen=True, kw_only=True)
class _Perturbation(DocumentMethod):
    """Some rows of the output are computed anew for one document, its number being 1."""

    conflicts: ClassVar[Mapping[str, str]] = {
        "*": "a perturbation is compared with the plain model"
    }

    document: int | None = option(None, whole(0))

    def for_self_check(self) -> Method:
        """Of a document of the check's own prompts."""
        return replace(self, document=1)

    def per_document(self, prompt: TokenizedPrompt) -> Sequence[float]:
        """1 for the perturbed document, 0 for the others."""
        count, chosen = len(prompt.layout.documents), self.document
        if chosen is None:
            if GOLD not in prompt.document_ids:
                raise MethodConfigError(
                    f"{self.name} perturbs the document whose id is {GOLD!r}, and there is none: "
                    "pass its 0-based position as document, or ask the task json_pairs."
                )
            chosen = prompt.document_ids.index(GOLD)
        if chosen >= count:
            raise MethodConfigError(
                f"{self.name}: document must be below {count}, the number of documents; got "
                f"{chosen}."
            )
        return [float(document == chosen) for document in range(count)]

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        for layer in traits.layers.values():
            if layer.sliding_window or layer.attention_chunk or layer.sinks:
                raise unsupported(
                    traits,
                    f"{self.name} looks at whole prompts, and layer {layer.layer} has a window, "
                    "chunks or attention sinks of its own.",
                )
        return super().plan(prompts, traits)

    def attend(self, context: AttentionContext, values: tuple[tuple[float, ...], ...]) -> Attention:
        output, _ = context.proceed()  # [b, n, h, dv]
        output = output.clone()
        rows = context.layer.request.row_layouts()
        for index, (padding, layout) in enumerate(rows):
            row = _Row(context=context, index=index, padding=padding, layout=layout)
            numbers = values[index * len(values) // len(rows)]
            for chosen, (start, end) in zip(numbers, layout.documents, strict=True):
                own = range(padding + start, padding + end)
                if chosen and own and (changed := self._recomputed(row, own)):
                    queries, attended = changed
                    first = queries.start - context.start
                    output[index, first : first + len(queries)] = attended.to(output.dtype)
        return output, None

    @abstractmethod
    def _recomputed(self, row: _Row, own: range) -> tuple[range, Tensor] | None:
        """Queries, and their output `[q, h, dv]`; None for nothing.

        Args:
            row: of the call.
            own: columns of the perturbed document.
        """


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
    """

    name: ClassVar[str] = "cropped_mask"
    claims = frozenset({"visibility"})

    layers: tuple[int, ...] = tuple(range(8))

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        there = tuple(layer for layer in self.layers if layer < traits.num_layers)
        return super(CroppedMask, replace(self, layers=there)).plan(prompts, traits)

    def _recomputed(self, row: _Row, own: range) -> tuple[range, Tensor] | None:
        if row.context.start:
            return None  # the document has been read
        columns = sorted({row.padding, *own})
        return own, row.weighed(row.weights(own, columns), columns)


@dataclass(frozen=True, kw_only=True)
class MovedPositions(_Perturbation):
    """The last token attends to the document as if its positions were elsewhere.

    Keys of the document are rotated to the beginning or to the end of all documents, for the query
    of the last prompt token and of generated ones; all other rows attend as ever.

    Attributes:
        document: its 0-based position; None for the gold one, by its id.
        to: ``"beginning"``: right after the text before the documents; ``"end"``: right before
            the text after them.

    References:
        arXiv:2406.02536, appendix C ("PE to beginning", "PE to end").
    """

    name: ClassVar[str] = "moved_positions"
    claims = frozenset({"positions"})

    to: Literal["beginning", "end"] = option("beginning", one_of(Literal["beginning", "end"]))

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        require_rope(self.name, traits)
        require_known_rotation(self.name, traits, tuple(traits.layers))
        if any(layer.norms_after_rope for layer in traits.layers.values()):
            raise unsupported(traits, f"{self.name} cannot rotate keys that are normalised later.")
        return super().plan(prompts, traits)

    def _recomputed(self, row: _Row, own: range) -> tuple[range, Tensor] | None:
        layer, layout = row.context.layer, row.layout
        rotary, style = layer.rotary, layer.traits.rotary
        if rotary is None or style is None:
            return None
        first = layout.prefix_tokens if self.to == "beginning" else layout.suffix_start - len(own)
        rotations = rotary.rotations(torch.tensor([row.padding + first - own.start]), style)
        key = row.context.call.key[row.index].clone()  # [g, n, d]
        cos, sin = (table.to(key.device) for table in rotations)
        key[:, own.start : own.stop] = rotate(key[:, own.start : own.stop], cos, sin, style)
        return row.last, row.weighed(row.weights(row.last, row.columns, key), row.columns)


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
    """

    name: ClassVar[str] = "doubled_attention"

    factor: float = option(2.0, number(least=0), neutral=1)
    layers: tuple[int, ...] | None = None
    renormalise: bool = False

    def _recomputed(self, row: _Row, own: range) -> tuple[range, Tensor]:
        weights = row.weights(row.last, row.columns)
        weights[..., own.start - row.padding : own.stop - row.padding] *= self.factor
        if self.renormalise:
            weights = weights / weights.sum(-1, keepdim=True)
        return row.last, row.weighed(weights, row.columns)


@dataclass(frozen=True, kw_only=True)
class MutualDocuments(_Perturbation):
    """Documents attend to each other both ways, at the positions that they have in the prompt.

    A document's token sees the prefix, its own document up to itself and all other documents; later
    tokens see everything before them. It is PINE without re-assignment of positions in the second
    of two readings: the first, PINE's ablation ``"no_reassignment"``, puts each document last for
    its own queries, here it stays where it is, before and after others.

    References:
        arXiv:2407.01100, section 4.3, figure 4 b.
    """

    name: ClassVar[str] = "mutual_documents"
    claims = frozenset({"visibility", "positions"})

    def per_document(self, prompt: TokenizedPrompt) -> Sequence[float]:
        """All are perturbed."""
        return [1.0] * len(prompt.layout.documents)

    def _recomputed(self, row: _Row, own: range) -> tuple[range, Tensor] | None:
        if row.context.start:
            return None  # documents have been read
        seen = range(row.padding, row.padding + row.layout.suffix_start)
        columns = [*(column for column in seen if column not in own), *own]
        return own, row.weighed(row.weights(own, columns), columns)


#: By the name that a configuration gives them.
PERTURBATIONS: Mapping[str, type[Method]] = {
    method.name: method
    for method in (CroppedMask, DoubledAttention, MovedPositions, MutualDocuments)
}
