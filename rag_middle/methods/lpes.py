"""LPES (arXiv:2606.27705): one position scale per layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rag_middle.attention import AttentionPlan, ModelTraits
from rag_middle.errors import MethodConfigError
from rag_middle.methods.base import (
    Method,
    MethodInfo,
    as_several,
    chosen_layers,
    no_default,
    require_finite,
)
from rag_middle.methods.position_interpolation import PositionScale
from rag_middle.methods.requirements import require_rope
from rag_middle.ops.curves import Curve, curve_factors
from rag_middle.tokens import TokenizedPrompt


@dataclass(frozen=True, kw_only=True)
class LPES(Method):
    r"""Layer ``x`` uses rotary positions ``m / s_x``, shared by its heads.

    The paper draws ``s`` from a cubic Bézier curve over the layers, whose control points a genetic
    search fits to a model; `from_curve` takes such points.

    Attributes:
        factors: ``s_x`` for every decoder layer, or one number for all. There is no default: 1.5
            in every layer, where the paper's search starts, can leave a small model without a
            right answer.

    References:
        LPES, arXiv:2606.27705, section 3.

    Raises:
        MethodConfigError: no factors, a factor that is not positive and finite, or another number
            of factors than the model has layers.
    """

    name: ClassVar[str] = "lpes"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="LPES",
        paper="arXiv:2606.27705",
        idea="Each layer divides rotary positions by its own factor.",
        cost="no further operations; calibrating the factors takes long",
        requires="rotary position embedding (RoPE)",
        can_hurt_when="factors were fitted to another model, or to prompts of another length",
    )

    factors: tuple[float, ...] | float = no_default(
        "lpes needs factors fitted to the model: fit them with `rag-middle calibrate --method "
        "lpes` and use profile:PATH, or pass factors, one per layer.",
        example=1.5,
    )

    def __post_init__(self) -> None:
        if not isinstance(self.factors, int | float):
            factors = as_several("LPES", "factors", self.factors, "factors, or one number")
            object.__setattr__(self, "factors", factors)
        factors = self._as_tuple(1)
        if not factors:
            raise MethodConfigError("LPES: factors are empty; give one per layer.")
        for layer, factor in enumerate(factors):
            require_finite("LPES", **{f"factors[{layer}]": factor})
            if factor <= 0:
                raise MethodConfigError(f"LPES: factors[{layer}] must be above 0, got {factor}.")

    @classmethod
    def from_curve(
        cls, points: Sequence[tuple[float, float]], num_layers: int, curve: Curve = "bezier"
    ) -> LPES:
        """The factors of a curve over `num_layers` layers (equations 3 to 5).

        Raises:
            MethodConfigError: fewer than two control points, or abscissae that do not rise.
        """
        try:
            return cls(factors=curve_factors(points, num_layers, curve))
        except ValueError as error:
            raise MethodConfigError(f"LPES: {error}.") from error

    def _as_tuple(self, num_layers: int) -> tuple[float, ...]:
        if isinstance(self.factors, tuple):
            return self.factors
        return (self.factors,) * num_layers

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        """One position scale per layer."""
        require_rope("lpes", traits)
        factors = self._as_tuple(traits.num_layers)
        if len(factors) != traits.num_layers:
            raise MethodConfigError(
                f"LPES: {len(factors)} factors for {traits.num_layers} layers of this "
                f"{traits.model_type} model: give one factor per layer."
            )
        return AttentionPlan.by_layer(
            chosen_layers(None, traits, rotated=True),
            lambda layer: PositionScale(scale=factors[layer]),
        )

    @property
    def is_neutral(self) -> bool:
        """True where every factor is 1."""
        return all(factor == 1 for factor in self._as_tuple(1))
