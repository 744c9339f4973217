"""Attention Buckets (arXiv:2312.04455): several rotary bases, the most confident first."""

from __future__ import annotations

from collections.abc import Sequence
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
from rag_middle.errors import MethodConfigError, UnsupportedGenerationError
from rag_middle.methods.base import (
    Method,
    MethodInfo,
    as_indices,
    as_several,
    chosen_layers,
    require_finite,
)
from rag_middle.methods.position_interpolation import OtherTables
from rag_middle.methods.requirements import require_rope
from rag_middle.tokens import TokenizedPrompt

if TYPE_CHECKING:
    from torch import Tensor

    from rag_middle.attention import RotaryCall
    from rag_middle.methods.base import Runner

#: The bases that MoICE's code mixes, over LLaMA 2's own base of 10,000.
PUBLISHED_BASES = (1.0, 1.75, 1.8, 1.9, 2.0, 2.25, 2.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryBases(LayerChange):
    """Every prompt is read with rotary frequencies of a base of its own.

    Attributes:
        factors: per prompt, what the model's own base is multiplied by.
    """

    claims = frozenset({"positions", "hidden"})  # scaled channels rotate with the model's own base
    answers_attention = False
    depends_on_prompt = False

    factors: tuple[float, ...]

    @property
    def rotation(self) -> Rotation | None:
        """That of all prompts, where all have the same base."""
        if len(set(self.factors)) > 1:
            return None
        return Rotation(base_factor=self.factors[0])

    def start(self, layer: Layer) -> LayerHandler:
        def tables(rotary: RotaryCall, rows: int) -> Any:
            repeats, rest = divmod(rows, len(self.factors))
            if rest:
                raise UnsupportedGenerationError(
                    f"{rows} rows for {len(self.factors)} readings of a prompt, each with rotary "
                    "tables of its own: keep all rows of the cache."
                )
            return rotary.rebased_rows(tuple(f for f in self.factors for _ in range(repeats)))

        return OtherTables(layer, tables)


@dataclass(frozen=True, kw_only=True)
class AttentionBuckets(Method):
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

    Raises:
        MethodConfigError: no factors, or one that is not a positive finite number.
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

    base_factors: tuple[float, ...] = PUBLISHED_BASES
    layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        factors = as_base_factors("AttentionBuckets", self.base_factors)
        object.__setattr__(self, "base_factors", factors)
        if self.layers is not None:
            object.__setattr__(
                self, "layers", as_indices("AttentionBuckets", "layers", self.layers)
            )

    def branches(self, prompt: TokenizedPrompt, runner: Runner) -> Sequence[Sequence[int]]:
        """The same prompt for every base."""
        return (range(len(prompt.layout.documents)),) * len(self.base_factors)

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        """One base per branch, those of each prompt one after the other."""
        require_rope("attention_buckets", traits)
        count = len(self.base_factors)
        factors = tuple(self.base_factors[index % count] for index in range(len(prompts)))
        layers = chosen_layers(self.layers, traits, rotated=True)
        return AttentionPlan.uniform(layers, RotaryBases(factors=factors))

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

    @property
    def is_neutral(self) -> bool:
        """True where every base is the model's own."""
        return all(factor == 1 for factor in self.base_factors)


def as_base_factors(owner: str, values: Sequence[float]) -> tuple[float, ...]:
    """`values` as a tuple.

    Raises:
        MethodConfigError: none at all, or one that is not a positive finite number.
    """
    factors = as_several(owner, "base_factors", values, "numbers")
    require_finite(owner, **{f"base_factors[{i}]": value for i, value in enumerate(factors)})
    if not factors or min(factors) <= 0:
        raise MethodConfigError(
            f"{owner}: base_factors must be one or more numbers above 0, got {factors}."
        )
    return factors
