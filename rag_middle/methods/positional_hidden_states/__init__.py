"""Positional hidden states (arXiv:2406.02536): scale the channel that carries position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rag_middle.attention import AttentionPlan, Layer, LayerHandler, ModelTraits
from rag_middle.errors import MethodConfigError
from rag_middle.methods.base import MethodInfo
from rag_middle.methods.document_method import AttentionMethod
from rag_middle.methods.rules import INDICES, no_default, number, option, optional, several, whole
from rag_middle.tokens import TokenizedPrompt


@dataclass(frozen=True, kw_only=True)
class PositionalHiddenStates(AttentionMethod):
    r"""One channel of the attention input is scaled for the last prompt token's attention.

    .. math:: \bar h = h + (s-1)\, h_t\, e_t

    In the chosen layers the last prompt token, and every generated one, attends with queries and
    keys of :math:`\bar h`; the other prompt tokens attend as usual. The cache keeps the scaled
    keys. The channel is one whose mean value drifts monotonically with position.

    Attributes:
        channels: indices ``t`` into the hidden size. There is no default: use a preset, or
            calibrate.
        factor: ``s``; 1 leaves the model as it is.
        layers: 0-based layers to change; ``None`` for all.
        last_tokens: prompt rows, counted from the end, that attend with scaled queries and keys;
            ``None`` for all of them (an ablation, like 16).
        scale_values: scale the values as well (an ablation; off in the paper).
        skip_first: prompt tokens, counted from the first, whose keys and values stay as they are.
        reference_code: compute as the authors' code does where it departs from the paper: any
            `skip_first` turns scaling off for generated tokens.

    References:
        Yu et al., Mitigate Position Bias in Large Language Models via Scaling a Single Dimension,
        arXiv:2406.02536, equations 4 and 5 and table 5. The presets follow the table where the
        authors' configuration files say otherwise.
    """

    name: ClassVar[str] = "positional_hidden_states"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="Positional hidden states",
        paper="arXiv:2406.02536",
        idea="The hidden channel that carries position is scaled for the last token's attention.",
        cost="one attention row per changed layer",
        requires="a channel calibrated for the model; softmax attention",
        can_hurt_when="the channel carries no position in this model, or the factor is far from 1",
    )

    claims = frozenset({"hidden"})

    channels: tuple[int, ...] = no_default(
        "positional_hidden_states needs the channel that carries position in this model: find it "
        "with `rag-middle calibrate --method positional_hidden_states` and use profile:PATH, "
        "choose a preset such as positional_hidden_states:llama-2-7b-chat, or pass channels.",
        example=(0,),
        rule=several(whole(0), "channels", at_least=1, distinct=True),
    )
    factor: float = option(0.0, number(), neutral=1)
    layers: tuple[int, ...] | None = option(None, INDICES)
    last_tokens: int | None = option(1, optional(whole(1)))
    scale_values: bool = False
    skip_first: int = option(0, whole(0))
    reference_code: bool = False

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        """Channel scaling in the chosen layers."""
        plan = super().plan(prompts, traits)
        outside = [channel for channel in self.channels if channel >= traits.hidden_size]
        if outside:
            raise MethodConfigError(
                f"Channels {outside} do not exist: this {traits.model_type} model has a hidden "
                f"size of {traits.hidden_size}."
            )
        return plan

    def start(self, layer: Layer) -> LayerHandler:
        """Scales cached keys, and the attention of the last rows."""
        from rag_middle.methods.positional_hidden_states.attention import ScaledRows

        return ScaledRows(layer, self)

    @property
    def scales_generated(self) -> bool:
        """Whether generated tokens attend with scaled queries and keys, and cache them."""
        return not (self.reference_code and self.skip_first)
