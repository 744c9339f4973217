"""What a method asks of the attention layers: plain data, no tensors of a request.

A method's `plan` hook answers, per layer, at most four questions. Each answer is one field of
`LayerPlan`; two methods compose when no layer is asked the same question twice.

==============  =============================================================  ==================
field           question                                                       answered by
==============  =============================================================  ==================
``positions``   at which position, and how, is each query and key rotated      PI, LPES, Ms-PoE,
                                                                                Self-Extend,
                                                                                Buckets, MoICE
``documents``   which keys may a query see, and how far away do they seem      PINE, RoToR, PCW,
                                                                                APE, ...
``hidden``      what is added to queries and keys                              positional channel
``weights``     what is multiplied into attention weights after the softmax    SIW
==============  =============================================================  ==================

``documents`` decides about visibility and distance together, in an attention of its own, so it
claims the other three as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal

from rag_middle.errors import IncompatibleMethodsError, MethodConfigError
from rag_middle.layout import PromptLayout
from rag_middle.ops.document_blocks import Placement
from rag_middle.ops.experts import ExpertGate

__all__ = [
    "AttentionPlan",
    "ChannelScaling",
    "DocumentBlocks",
    "DocumentCircle",
    "DocumentOrder",
    "GroupedPositions",
    "HeadPositionScale",
    "InitialTokenScaling",
    "LayerPlan",
    "OnlineAreas",
    "PositionScale",
    "RotaryBases",
    "RotaryExperts",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionScale:
    """All heads of the layer use positions ``m / scale``."""

    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryBases:
    """Every prompt is read with rotary frequencies of a base of its own.

    Attributes:
        factors: per prompt, what the model's own base is multiplied by.
    """

    factors: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RotaryExperts:
    """Every head attends with several rotary bases, and their outputs are mixed.

    Attributes:
        base_factors: what the model's own base is multiplied by, one per expert.
        routers: by layer; ``None`` mixes all experts in equal parts.
        top_k: experts that a router keeps for a query.
    """

    base_factors: tuple[float, ...]
    routers: Mapping[int, ExpertGate] | None
    top_k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadPositionScale:
    """Each head uses positions ``m / ratio``, its ratio chosen once per prompt.

    Attributes:
        ratios: one ratio per rank, most position-aware head first. Length ``h`` where
            `per_query_head`, else ``g``.
        assign: ``"rank"`` gives a head the ratio of its rank by position awareness, ``"order"``
            the ratio numbered by the argsort itself, ``"sequential"`` the ratio of its own index.
        threshold: attention of at least `threshold` times the mean counts as aware.
        strict: only attention above that multiple counts, not equal to it.
        per_query_head: queries of one key/value group may use different ratios; their key uses
            the ratio of the group's first head. Otherwise a group shares one ratio.
    """

    ratios: tuple[float, ...]
    assign: Literal["rank", "order", "sequential"]
    threshold: float
    strict: bool
    per_query_head: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedPositions:
    """Keys nearby are seen at their distance, others at distances that share positions.

    Attributes:
        group: tokens ``G`` that share a position beyond the window.
        window: a key fewer than this many tokens before the query is seen at its distance.
        query_shift: what is added to a query's grouped position.
        log_base: a query at position ``i`` is multiplied by ``max(1, ln(i + 1) / ln(log_base))``;
            ``None`` for not.
    """

    group: int
    window: int
    query_shift: float
    log_base: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentOrder:
    """Every query sees all documents, nearest the ones it attends to most (PINE)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentCircle:
    """Every query sees all documents, in the order of the prompt going round in a circle (RoToR).

    Attributes:
        unchanged: per prompt, whether it is read as the model does; empty where none is.
    """

    unchanged: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentBlocks:
    """Documents see the prefix and themselves; later tokens see everything before them.

    Attributes:
        placement: where documents stand: ``"kept"`` as in the prompt; ``"from_start"`` all
            beginning behind the prefix, later tokens continuing after the longest; ``"to_end"``
            likewise, but moved to end where the longest ends for the tokens that read them;
            ``"last"`` all ending where the documents end in the prompt.
        temperature: later tokens' scores on documents are divided by it.
        scale: exponent of the documents' mass in their softmax, on top of the temperature (APE).
        one_of_many: that mass is divided by the number of documents (structured prompting).
    """

    placement: Placement
    temperature: float = 1.0
    scale: float = 1.0
    one_of_many: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelScaling:
    """Channels of the attention input are multiplied by `factor` for the last prompt rows.

    Attributes:
        channels: indices into the hidden size.
        factor: what the channels are multiplied by.
        last_tokens: prompt rows, counted from the end, that attend with scaled queries and keys;
            ``None`` for all of them.
        scale_values: scale the values as well.
        skip_first: prompt tokens, counted from the start, whose keys and values stay as they are.
        scale_generated: generated tokens attend with scaled queries and keys, and cache them.
    """

    channels: tuple[int, ...]
    factor: float
    last_tokens: int | None = 1
    scale_values: bool = False
    skip_first: int = 0
    scale_generated: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialTokenScaling:
    """Attention weights to the prompt's first token are multiplied after the softmax.

    Attributes:
        factors: per example, one factor for each document's tokens; other tokens keep theirs.
    """

    factors: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineAreas:
    """Like `InitialTokenScaling`, with factors found in the prompt's own attention.

    Attributes:
        alpha_dense: factor for documents that the last prompt token attends to densely.
        alpha_sparse: factor for the others.
        top_share: share of the prompt's tokens that count as attended to.
    """

    alpha_dense: float
    alpha_sparse: float
    top_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """What one layer does differently. ``None`` means as the model does it."""

    positions: (
        PositionScale | HeadPositionScale | GroupedPositions | RotaryBases | RotaryExperts | None
    ) = None
    documents: DocumentOrder | DocumentCircle | DocumentBlocks | None = None
    hidden: ChannelScaling | None = None
    weights: InitialTokenScaling | OnlineAreas | None = None

    def claims(self) -> frozenset[str]:
        """Names of the questions this plan answers."""
        claimed = {f.name for f in fields(self) if getattr(self, f.name) is not None}
        if "documents" in claimed:
            claimed |= {"positions", "hidden", "weights"}
        if isinstance(self.positions, RotaryBases):
            claimed.add("hidden")  # scaled channels are rotated with the model's own base
        if isinstance(self.positions, RotaryExperts):
            claimed |= {"hidden", "weights"}  # several attentions, of which none is reweighted
        return frozenset(claimed)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPlan:
    """Plans by layer index; layers not named run as the model runs them."""

    layers: Mapping[int, LayerPlan] = field(default_factory=dict)

    @classmethod
    def uniform(cls, layers: range | tuple[int, ...], plan: LayerPlan) -> AttentionPlan:
        """The same plan in each of `layers`."""
        return cls(layers=dict.fromkeys(layers, plan))

    @classmethod
    def by_layer(
        cls, layers: range | tuple[int, ...], plan: Callable[[int], LayerPlan]
    ) -> AttentionPlan:
        """The plan that `plan` returns for each of `layers`."""
        return cls(layers={layer: plan(layer) for layer in layers})

    @property
    def last_tokens_changed(self) -> int | None:
        """Prompt tokens, counted from the end, that attend differently; all others as ever.

        ``None`` where that is no number: other tokens attend differently too, or positions, what
        documents see or attention weights are changed, or nothing is.
        """
        scaled = [plan.hidden for plan in self.layers.values()]
        counts = [each.last_tokens for each in scaled if each is not None]
        alone = all(plan.claims() == {"hidden"} for plan in self.layers.values())
        known = [count for count in counts if count is not None]
        return max(known) if alone and known and len(known) == len(counts) else None

    @property
    def rotates_only(self) -> bool:
        """True where no layer does more than turn queries and keys by other rotary tables.

        A prompt then leaves its keys and values behind and nothing else.
        """
        by_table = (PositionScale, RotaryBases)
        return all(
            plan == LayerPlan(positions=plan.positions) and isinstance(plan.positions, by_table)
            for plan in self.layers.values()
        )

    def of_prompt(self, index: int) -> AttentionPlan:
        """What is asked for one prompt of the batch, read alone.

        Args:
            index: of the prompt, 0-based.

        Raises:
            MethodConfigError: layers do more than turn queries and keys (see `rotates_only`).
        """
        if not self.rotates_only:
            raise MethodConfigError(
                "This plan changes more than rotary positions: run all of its prompts together."
            )
        layers = {}
        for layer, plan in self.layers.items():
            bases = plan.positions
            if isinstance(bases, RotaryBases):
                bases = RotaryBases(factors=(bases.factors[index],))
            layers[layer] = LayerPlan(positions=bases)
        return AttentionPlan(layers=layers)

    def merge(self, other: AttentionPlan) -> AttentionPlan:
        """Both plans together.

        Raises:
            IncompatibleMethodsError: a layer is asked the same question twice.
        """
        merged = dict(self.layers)
        for layer, theirs in other.layers.items():
            ours = merged.get(layer)
            if ours is None:
                merged[layer] = theirs
                continue
            clash = ours.claims() & theirs.claims()
            if clash:
                raise IncompatibleMethodsError(
                    f"Two methods both decide the {' and '.join(sorted(clash))} of layer {layer}. "
                    "Compose methods that decide different things, or give them disjoint layers."
                )
            mine = {f.name: getattr(theirs, f.name) for f in fields(theirs)}
            merged[layer] = replace(ours, **{k: v for k, v in mine.items() if v is not None})
        return AttentionPlan(layers=merged)

    def check(self, num_layers: int, layouts: tuple[PromptLayout, ...]) -> None:
        """Raise `MethodConfigError` where the plan names layers or documents that do not exist."""
        outside = sorted(layer for layer in self.layers if not 0 <= layer < num_layers)
        if outside:
            raise MethodConfigError(
                f"Layers {outside} do not exist: the model has layers 0 to {num_layers - 1}."
            )
        for plan in self.layers.values():
            if not isinstance(plan.weights, InitialTokenScaling):
                continue
            for example, (factors, layout) in enumerate(
                zip(plan.weights.factors, layouts, strict=True)
            ):
                if len(factors) != len(layout.documents):
                    raise MethodConfigError(
                        f"Example {example} has {len(layout.documents)} documents but "
                        f"{len(factors)} factors: give one factor per document."
                    )
