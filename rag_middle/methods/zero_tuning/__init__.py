"""ZeroTuning (arXiv:2505.11739): scale the attention of chosen heads to the initial token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rag_middle.attention import AttentionContext, AttentionPlan, LayerTraits, ModelTraits
from rag_middle.errors import MethodConfigError
from rag_middle.methods.base import MethodInfo
from rag_middle.methods.document_method import Attention, AttentionMethod
from rag_middle.methods.rules import (
    INDICES,
    no_default,
    number,
    one_or_several,
    option,
    several,
    whole,
)
from rag_middle.tokens import TokenizedPrompt


@dataclass(frozen=True, kw_only=True)
class ZeroTuning(AttentionMethod):
    r"""Weights on the initial token are multiplied in chosen heads, and rows normalised again.

    .. math:: a'_{i,0} = \frac{\gamma_h a_{i,0}}{D_i}, \quad a'_{i,j} = \frac{a_{i,j}}{D_i}, \quad
              D_i = 1 + (\gamma_h - 1)\, a_{i,0}

    for every token ``i``, generated ones too: a bias of ``log(gamma)`` on the score of the initial
    token. Above 1 the initial token gets more and the others' weights are flattened, below 1 less
    and they are sharpened; among each other their proportions stay.

    SIW changes the same weight in another way: in all heads alike, in the documents' rows only,
    without normalising, and in the middle layers.

    Attributes:
        factor: ``gamma``, above 0: one for all chosen heads, or one for each of them. 1 is neutral.
        heads: 0-based query heads, the same in every layer; ``None`` for all.
        layers: 0-based layers to change; ``None`` for all.

    References:
        Han et al., ZeroTuning: Unlocking the Initial Token's Power to Enhance Large Language Models
        Without Training, arXiv:2505.11739. The formula is that of the authors'
        ``modelling_llama.py``, which takes one factor. There, heads are tried one at a time over
        all layers: those where a factor above 1 helps are called up-effective, the others
        down-effective. Differs: the initial token is each row's first real one (theirs is column
        0, padding where a batch is padded on the left), and attention stays fused.
    """

    name: ClassVar[str] = "zero_tuning"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="ZeroTuning",
        paper="arXiv:2505.11739",
        idea="Chosen heads attend more, or less, to the attention sink; other weights keep their "
        "proportions.",
        cost="the log-sum-exp of the prompt's attention; "
        "no further operations for generated tokens",
        requires="softmax attention; a factor and heads fitted to model and task",
        can_hurt_when="the factor suits another task: classification and question answering differ "
        "in its direction",
    )
    claims = frozenset({"weights"})
    conflicts: ClassVar[Mapping[str, str]] = {
        "self_extend": "Self-Extend keeps every key twice, and which of the two a generated token "
        "reads is known to it alone",
        "positional_hidden_states": "the last prompt tokens attend with scaled queries of their "
        "own, and would lose the factors. Use one of them",
    }

    factor: float | tuple[float, ...] = no_default(
        "zero_tuning needs a factor fitted to model and task, above 1 for some and below 1 for "
        "others: fit it, and the heads, with `rag-middle calibrate --method zero_tuning` and use "
        "profile:PATH, or pass factor.",
        example=2.0,
        rule=one_or_several(number(above=0), "factors"),
        neutral=1,
    )
    heads: tuple[int, ...] | None = option(
        None, several(whole(0), "heads", at_least=1, distinct=True)
    )
    layers: tuple[int, ...] | None = option(None, INDICES)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (
            isinstance(self.factor, tuple)
            and self.heads is not None
            and len(self.factor) != len(self.heads)
        ):
            raise MethodConfigError(
                f"ZeroTuning: {len(self.factor)} factors for {len(self.heads)} heads: give one "
                "for all, or one for each."
            )

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        """A factor for each head of every chosen layer."""
        plan = super().plan(prompts, traits)
        for layer in plan.layers:
            self.factors(traits.layers[layer])
        return plan

    def factors(self, layer: LayerTraits) -> tuple[float, ...]:
        """One for each query head of a layer.

        Raises:
            MethodConfigError: the layer has not so many heads.
        """
        heads = range(layer.heads) if self.heads is None else self.heads
        factors = self.factor if isinstance(self.factor, tuple) else (self.factor,) * len(heads)
        if max(heads) >= layer.heads or len(factors) != len(heads):
            raise MethodConfigError(
                f"ZeroTuning: layer {layer.layer} of this model has {layer.heads} heads: name "
                f"heads below {layer.heads}, with a factor for each, or one factor for all."
            )
        of_heads = dict(zip(heads, factors, strict=True))
        return tuple(of_heads.get(head, 1.0) for head in range(layer.heads))

    def attend(self, context: AttentionContext) -> Attention:
        """Attention with a bias on the score of the initial token, head by head."""
        from rag_middle.methods.zero_tuning.attention import attend_biasing_initial_token

        return attend_biasing_initial_token(self.factors(context.layer.traits), context)
