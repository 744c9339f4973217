"""Position Interpolation (arXiv:2306.15595): every position divided by one number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rag_middle.attention.plan import AttentionPlan, LayerPlan, PositionScale
from rag_middle.attention.traits import ModelTraits
from rag_middle.errors import MethodConfigError
from rag_middle.layout import PromptLayout
from rag_middle.methods.base import Method, MethodInfo, as_indices, chosen_layers, require_finite

__all__ = ["PositionInterpolation"]


@dataclass(frozen=True, kw_only=True)
class PositionInterpolation(Method):
    r"""Rotary positions ``m`` become ``m / scale`` in all heads and layers.

    .. math:: f'(x, m) = f(x, m / s)

    Attributes:
        scale: ``s``; 1 leaves the model as it is.
        layers: 0-based layers to change; ``None`` for all.

    References:
        Chen et al., Extending Context Window of Large Language Models via Positional
        Interpolation, arXiv:2306.15595, section 3.2. There for longer contexts; the papers on
        position bias use it as a baseline at unchanged length.

    Raises:
        MethodConfigError: `scale` is not a positive finite number.
    """

    registered_name: ClassVar[str] = "position_interpolation"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="Position Interpolation",
        paper="arXiv:2306.15595",
        idea="All rotary positions are divided by one number.",
        cost="none measurable",
        requires="rotary position embedding (RoPE)",
    )

    scale: float = 1.5
    layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        require_finite("PositionInterpolation", scale=self.scale)
        if self.scale <= 0:
            raise MethodConfigError(
                f"PositionInterpolation: scale must be above 0, got {self.scale}."
            )
        if self.layers is not None:
            layers = as_indices("PositionInterpolation", "layers", self.layers)
            object.__setattr__(self, "layers", layers)

    def plan(self, layouts: tuple[PromptLayout, ...], traits: ModelTraits) -> AttentionPlan:
        """The same scale in every layer."""
        traits.require_rope("position_interpolation")
        plan = LayerPlan(positions=PositionScale(scale=self.scale))
        return AttentionPlan.uniform(chosen_layers(self.layers, traits, rotated=True), plan)

    @property
    def is_neutral(self) -> bool:
        """True at scale 1."""
        return self.scale == 1
