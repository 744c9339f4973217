"""Ms-PoE (arXiv:2403.04797): a position scale per head, by how position-aware the head is."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from rag_middle.attention import Layer, LayerHandler, LayerTraits, ModelTraits
from rag_middle.errors import MethodConfigError
from rag_middle.methods.base import MethodInfo
from rag_middle.methods.document_method import AttentionMethod
from rag_middle.methods.rules import INDICES, number, one_of, option, whole

HeadOrder = Literal["awareness", "sequential", "random", "entropy"]
Assign = Literal["rank", "argsort"]


@dataclass(frozen=True, kw_only=True)
class MsPoE(AttentionMethod):
    r"""Heads use positions ``m / r_i``, the least position-aware head the largest ratio.

    .. math:: r_i = r_{min} + \frac{(i-1)(r_{max}-r_{min})}{n_h-1}

    for the head of rank ``i`` by awareness, most aware first. Awareness is the share of the
    prompt on which the last prompt token puts at least `threshold` times its mean attention,
    from queries and keys without position embedding. It is found anew for every prompt and layer
    and kept for the tokens generated after it.

    Attributes:
        min_ratio: ``r_min``, of the most position-aware head.
        max_ratio: ``r_max``.
        first_layer: layers before it stay as they are (0-based).
        layers: 0-based layers to change, instead of all from `first_layer` on.
        head_order: what heads are ranked by. ``"awareness"``, or one of the paper's ablations
            (table 3): ``"sequential"`` gives heads the ratios in their own order, ``"random"`` in
            one drawn for each layer, ``"entropy"`` by the entropy of the last prompt token's
            attention, the highest first: a head that attends to more tokens than the first and
            last ones keeps a ratio near 1.
        assign: ``"rank"``: a head takes the ratio of its rank, as the prose and equation 2 say;
            ``"argsort"``: ratio number ``argsort[head]``, as algorithm 1, line 9, and the code do.
        threshold: multiple of the mean attention from which on a token counts.
        reference_code: compute as the authors' code does: ratios stop one step short of
            `max_ratio`, `assign` is ``"argsort"``, sequential order is reversed, attention of
            exactly the threshold does not count, and queries of one key/value group take different
            ratios while their key takes the first one's.

    References:
        Zhang et al., Found in the Middle, arXiv:2403.04797, equation 2, algorithm 1, section 4.3.
        Differs: grouped-query models share one ratio per key/value group (the group's mean
        awareness), so that a score still depends on distance only; the paper has no such model.
        With a single group, every head gets `min_ratio`. The paper does not say whether awareness
        is taken with or without position embedding; the authors' code takes it without. Windows,
        soft-capping and sinks do not enter it.
        Ties keep the order of the heads; the authors' sort is not stable. Their code has no order
        by entropy; its direction is that of section 4.3.
    """

    name: ClassVar[str] = "ms_poe"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="Ms-PoE",
        paper="arXiv:2403.04797",
        idea="Rotary positions are divided by larger ratios in less position-sensitive heads.",
        cost="one attention row and one more rotation per layer",
        requires="rotary position embedding (RoPE)",
        can_hurt_when="the model is small (its defaults break SmolLM2-135M), the prompt is short, "
        "or the task needs exact order or distances",
    )
    claims = frozenset({"positions"})
    defers_rotation = has_kernels = has_gradients = True
    conflicts: ClassVar[Mapping[str, str]] = {
        "positional_hidden_states": "Ms-PoE ranks heads by un-rotated keys, of which scaled "
        "channels would make two sets. Use one of them"
    }

    min_ratio: float = option(1.2, number(above=0), neutral=1)
    max_ratio: float = option(1.8, number(above=0), neutral=1)
    first_layer: int = option(2, whole(0))
    layers: tuple[int, ...] | None = option(None, INDICES)
    head_order: HeadOrder = option("awareness", one_of(HeadOrder))
    assign: Assign = option("rank", one_of(Assign))
    threshold: float = option(3.0, number())
    reference_code: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_ratio > self.max_ratio:
            raise MethodConfigError(
                f"MsPoE: min_ratio must be at most max_ratio, got {self.min_ratio} and "
                f"{self.max_ratio}."
            )
        if self.reference_code and self.head_order in ("random", "entropy"):
            raise MethodConfigError(
                f"MsPoE: the authors' code has no head_order={self.head_order!r}. Leave out "
                "reference_code."
            )

    def default_layers(self, traits: ModelTraits) -> range:
        """All but the first ones."""
        if self.layers is None and self.first_layer >= traits.num_layers:
            raise MethodConfigError(
                f"MsPoE: first_layer={self.first_layer} leaves none of the {traits.num_layers} "
                f"layers of this {traits.model_type} model: lower it."
            )
        return range(self.first_layer, traits.num_layers)

    def start(self, layer: Layer) -> LayerHandler:
        """Rotates queries and keys head by head."""
        from rag_middle.methods.ms_poe.attention import HeadRotation

        return HeadRotation(layer, self)

    def ratios(self, layer: LayerTraits) -> tuple[float, ...]:
        """Of a layer's key/value groups (query heads, as the authors' code has it), by rank.

        Where `head_order` says so, by head instead.
        """
        import torch

        heads = layer.heads if self.reference_code else layer.kv_heads
        # The authors divide by the number of heads, equation 2 by one less.
        steps = heads if self.reference_code else max(1, heads - 1)
        # float32, as the authors compute them: at position 400 a last-digit difference shows.
        ranks = torch.arange(heads, dtype=torch.float32, device="cpu")
        ratios = (self.min_ratio + (self.max_ratio - self.min_ratio) * (ranks / steps)).tolist()
        if self.head_order == "random":
            ratios = random.Random(f"ms_poe {layer.layer}").sample(ratios, heads)
        elif self.head_order == "sequential" and self.reference_code:
            ratios.reverse()
        return tuple(ratios)
