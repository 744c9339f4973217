"""Methods whose rotary tables are other than the model's, and the tables by themselves.

Most methods look at each prompt. Those that only rotate every token of every prompt at other
positions need nothing but tables, which any runtime has (`layer_rotations`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from rag_middle.attention import (
    AttentionPlan,
    Layer,
    LayerChange,
    LayerHandler,
    ModelTraits,
    Rotation,
)
from rag_middle.errors import (
    MethodConfigError,
    UnsupportedGenerationError,
)
from rag_middle.methods.base import Method, MethodInfo, chosen_layers
from rag_middle.methods.document_method import AttentionMethod
from rag_middle.methods.requirements import require_rope
from rag_middle.methods.rules import (
    INDICES,
    no_default,
    number,
    one_or_several,
    option,
    several,
)
from rag_middle.ops.curves import Curve, curve_factors
from rag_middle.tokens import TokenizedPrompt

if TYPE_CHECKING:
    from torch import Tensor

    from rag_middle.attention import RotaryCall
    from rag_middle.methods.base import Runner

#: The bases that MoICE's code mixes, over LLaMA 2's own base of 10,000.
PUBLISHED_BASES = (1.0, 1.75, 1.8, 1.9, 2.0, 2.25, 2.5)

#: Of factors of the model's own RoPE base.
BASE_FACTORS = several(number(above=0), "numbers", at_least=1)


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
        rule=number(above=0),
        neutral=1,
    )
    layers: tuple[int, ...] | None = option(None, INDICES)

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        """The same scale in every layer."""
        require_rope("position_interpolation", traits)
        layers = chosen_layers(self.layers, traits, rotated=True)
        return AttentionPlan.uniform(layers, PositionScale(scale=self.scale))


@dataclass(frozen=True, kw_only=True)
class LPES(Method):
    r"""Layer ``x`` uses rotary positions ``m / s_x``, shared by its heads.

    The paper draws ``s`` from a cubic Bézier curve over the layers, whose control points a genetic
    search fits to a model; `from_curve` takes such points.

    Attributes:
        factors: ``s_x`` for every decoder layer, or one number for all. There is no default: 1.5
            in every layer, where the paper's search starts, can leave a small model without a
            correct answer.

    References:
        LPES, arXiv:2606.27705, section 3.
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
        rule=one_or_several(number(above=0), "factors"),
        neutral=1,
    )

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

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        """One position scale per layer."""
        require_rope("lpes", traits)
        factors = self.factors
        if not isinstance(factors, tuple):
            factors = (factors,) * traits.num_layers
        if len(factors) != traits.num_layers:
            raise MethodConfigError(
                f"LPES: {len(factors)} factors for {traits.num_layers} layers of this "
                f"{traits.model_type} model: give one factor per layer."
            )
        return AttentionPlan.by_layer(
            chosen_layers(None, traits, rotated=True),
            lambda layer: PositionScale(scale=factors[layer]),
        )


@dataclass(frozen=True, kw_only=True)
class AttentionBuckets(AttentionMethod):
    r"""One forward pass per RoPE base; their distributions are averaged, weighted by confidence.

    .. math:: p(y) = \sum_n w_n p_n(y), \qquad w_n \propto \max_y p_n(y)

    Attention oscillates with distance, and a document may fall into a trough. Other bases have
    their troughs elsewhere. All readings go on with the same token, each with a cache of its own.

    Attributes:
        base_factors: one per reading, what the model's own RoPE base is multiplied by; all 1 is
            neutral.
        layers: 0-based layers to change; ``None`` for all with rotary positions.

    References:
        Chen et al., Fortify the Shortest Stave in Attention, arXiv:2312.04455. No public code.
        Bases are factors of the model's own here, so that the same values serve models trained with
        larger ones; the default is the set that MoICE (arXiv:2406.19598) publishes for LLaMA 2.
    """

    name: ClassVar[str] = "attention_buckets"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="Attention Buckets",
        paper="arXiv:2312.04455",
        idea="Forward passes with several RoPE bases; their outputs are weighted by confidence.",
        cost="as many forward passes and caches as bases",
        requires="rotary position embedding (RoPE)",
        can_hurt_when="a base far from the model's own reads badly and is confident of it",
    )

    claims = frozenset({"positions", "hidden"})  # scaled channels rotate with the model's own base
    answers_attention = False
    depends_on_prompt = False

    base_factors: tuple[float, ...] = option(PUBLISHED_BASES, BASE_FACTORS, neutral=1)
    layers: tuple[int, ...] | None = option(None, INDICES)

    def branches(self, prompt: TokenizedPrompt, runner: Runner) -> Sequence[Sequence[int]]:
        """The same prompt for every base."""
        return (range(len(prompt.layout.documents)),) * len(self.base_factors)

    def for_row(self, row: int) -> Method:
        """The base of the row's branch alone."""
        return replace(self, base_factors=(self.base_factors[row % len(self.base_factors)],))

    @property
    def rotation(self) -> Rotation | None:
        """That of a single base."""
        return None if self.combines else Rotation(base_factor=self.base_factors[0])

    def start(self, layer: Layer) -> LayerHandler:
        """One base per branch, those of each prompt one after the other."""
        prompts = len(layer.request.layouts)

        def tables(rotary: RotaryCall, rows: int) -> Any:
            repeats, rest = divmod(rows, prompts)
            if rest:
                raise UnsupportedGenerationError(
                    f"{rows} rows for {prompts} readings of a prompt, each with rotary tables of "
                    "its own: keep all rows of the cache."
                )
            of_rows = (row // repeats % len(self.base_factors) for row in range(rows))
            return rotary.rebased_rows(tuple(self.base_factors[index] for index in of_rows))

        return OtherTables(layer, tables)

    def combine(self, logits: Tensor) -> Tensor:
        """Log-probabilities."""
        # In logarithms throughout: probabilities of unlikely tokens may be 0 in float32.
        log_probabilities = logits.log_softmax(-1)
        confidence = log_probabilities.amax(-1, keepdim=True)
        return (log_probabilities + confidence.log_softmax(-2)).logsumexp(-2)

    @property
    def combines(self) -> bool:
        """True where there are several bases: one takes one forward pass."""
        return len(self.base_factors) > 1


# -- rotary tables for others ---------------------------------------------------------------------

_PROMPT = TokenizedPrompt.assembled(
    prefix=[1], documents=[], suffix=[2], document_ids=[], scores=[]
)
_ADVICE = (
    "Methods that are nothing but rotary tables: lpes, position_interpolation, and "
    "attention_buckets with a single base. Run the others with RagMiddleModel."
)


def layer_rotations(method: Method, traits: ModelTraits) -> Mapping[int, Rotation]:
    """How each layer that `method` changes rotates its positions, whatever the prompt.

    Layers whose rotation is the model's own are among them, where the method names them.

    Args:
        method: with its parameters.
        traits: the model.

    Raises:
        MethodConfigError: the method does more than that, or its parameters do not fit the model,
            or were calibrated for one of another shape.
        UnsupportedArchitectureError: this model cannot take it.
    """
    more = {
        "writes another prompt": method.rewrites,
        "puts the documents of each prompt in order": method.arranges,
        "makes each token from several forward passes": method.combines,
        "has to know where the documents of each prompt are": method.needs_documents,
    }
    for what, does in more.items():
        if does:
            raise _refused(method, what)
    method.check_fits(traits)
    plan = method.plan((_PROMPT,), traits)
    plan.check(traits.num_layers, (_PROMPT.layout,))
    if not plan.layers and not method.is_neutral:
        raise _refused(method, "changes no layer by itself")
    return {layer: _rotation(method, changes) for layer, changes in plan.layers.items()}


def _rotation(method: Method, changes: tuple[LayerChange, ...]) -> Rotation:
    rotations = [change.rotation for change in changes]
    if len(rotations) != 1 or rotations[0] is None:  # two that rotate clash when they are planned
        claims = sorted({claim for change in changes for claim in change.claims})
        raise _refused(method, f"decides the {' and '.join(claims)} of each request")
    return rotations[0]


def _refused(method: Method, what: str) -> MethodConfigError:
    return MethodConfigError(
        f"{method.name} {what}, and rotary tables say nothing of that. {_ADVICE}"
    )
