"""Position Interpolation (arXiv:2306.15595): every position divided by one number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rag_middle.attention import (
    AttentionPlan,
    Layer,
    LayerChange,
    LayerHandler,
    ModelTraits,
    Rotation,
)
from rag_middle.errors import MethodConfigError
from rag_middle.methods.base import (
    Method,
    MethodInfo,
    as_indices,
    chosen_layers,
    no_default,
    require_finite,
)
from rag_middle.methods.requirements import require_rope
from rag_middle.tokens import TokenizedPrompt

if TYPE_CHECKING:
    from rag_middle.attention import RotaryCall


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionScale(LayerChange):
    """All heads of the layer use positions ``m / scale``."""

    claims = frozenset({"positions"})
    answers_attention = False
    depends_on_prompt = False

    scale: float

    @property
    def rotation(self) -> Rotation:
        return Rotation(scale=self.scale)

    def start(self, layer: Layer) -> LayerHandler:
        layer.request.tables.expect(self.scale)
        return OtherTables(layer, lambda rotary, _: rotary.scaled(self.scale))


class OtherTables(LayerHandler):
    """Gives the attention module other rotary tables, where it has any.

    Args:
        layer: in a request.
        make: the tables of a forward pass, from its rotary call and the rows of its batch.
    """

    def __init__(self, layer: Layer, make: Callable[[RotaryCall, int], Any]) -> None:
        self._layer = layer
        self._make = make

    def before(self, arguments: dict[str, Any]) -> None:
        from rag_middle.attention import on_device

        rotary, hidden = self._layer.rotary, arguments["hidden_states"]
        if rotary is not None:
            tables = self._make(rotary, hidden.shape[0])
            arguments["position_embeddings"] = on_device(tables, hidden.device)


@dataclass(frozen=True, kw_only=True)
class PositionInterpolation(Method):
    r"""Rotary positions ``m`` become ``m / scale`` in all heads and layers.

    .. math:: f'(x, m) = f(x, m / s)

    Attributes:
        scale: ``s``; 1 leaves the model as it is. There is no default: the paper divides the wanted
            length by the trained one and then trains, and gives no value for prompts that fit.
        layers: 0-based layers to change; ``None`` for all.

    References:
        Chen et al., Extending Context Window of Large Language Models via Positional
        Interpolation, arXiv:2306.15595, section 3.2. There for longer contexts; the papers on
        position bias use it as a baseline at unchanged length.

    Raises:
        MethodConfigError: no `scale`, or one that is not a positive finite number.
    """

    name: ClassVar[str] = "position_interpolation"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="Position Interpolation",
        paper="arXiv:2306.15595",
        idea="All rotary positions are divided by one factor.",
        cost="no further operations",
        requires="rotary position embedding (RoPE)",
        can_hurt_when="the prompt fits the trained length: distances are then read too short",
    )

    scale: float = no_default(
        "position_interpolation needs a scale: the length you want over the length the model was "
        "trained on, e.g. scale=1.5. Above 1 it harms prompts that fit the model as it is; ms_poe "
        "has a scale per head and needs nothing fitted.",
        example=1.5,
    )
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

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        """The same scale in every layer."""
        require_rope("position_interpolation", traits)
        layers = chosen_layers(self.layers, traits, rotated=True)
        return AttentionPlan.uniform(layers, PositionScale(scale=self.scale))

    @property
    def is_neutral(self) -> bool:
        """True at scale 1."""
        return self.scale == 1
