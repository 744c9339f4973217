"""Perturbations of one document's positional information (arXiv:2406.02536, appendices C and D).

Which of the two makes attention fall off in the middle, the causal mask (through the hidden states
that it shapes) or the position embedding? Each is changed for the gold document alone. And does
more attention to it give more right answers? That of the last token to it is doubled. And one
channel that carries position may be moved in its hidden states::

    python -m rag_middle_reproduce.perturbations --model mistralai/Mistral-7B-Instruct-v0.2 \
        --channel 213

prints the accuracy of key-value retrieval for every position of the gold pair, as it is and under
each perturbation; `rag_middle_reproduce.perturbed_attention` draws the attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from rag_middle import MethodConfigError
from rag_middle.attention import AttentionPlan, ModelTraits
from rag_middle.methods import NoMethod
from rag_middle.methods.base import Method, MethodInfo, chosen_layers
from rag_middle.methods.requirements import require_interface, require_rope, unsupported
from rag_middle.methods.rules import no_default, number, one_of, option, whole
from rag_middle.tokens import TokenizedPrompt
from rag_middle_reproduce.perturbations.attention import Crop, Move, Multiply, Shift

__all__ = ["CroppedMask", "DoubledAttention", "MovedPositions", "ShiftedChannel", "perturbations"]

_GOLD = "needs the 0-based position of the document to perturb: pass document."


@dataclass(frozen=True, kw_only=True)
class _Perturbation(Method):
    conflicts: ClassVar[dict[str, str]] = {"*": "a perturbation is compared with the plain model"}
    needs_documents = True

    document: int = no_default(f"A perturbation {_GOLD}", example=0, rule=whole(0))

    def _check(self, prompts: Sequence[TokenizedPrompt], traits: ModelTraits) -> None:
        require_interface(self.name, traits)
        for layer in traits.layers.values():
            if layer.sliding_window or layer.attention_chunk or layer.sinks:
                raise unsupported(
                    traits,
                    f"{self.name} looks at whole prompts, and layer {layer.layer} has a window, "
                    "chunks or attention sinks of its own.",
                )
        for prompt in prompts:
            count = len(prompt.layout.documents)
            if self.document >= count:
                raise MethodConfigError(
                    f"{self.name}: document must be below {count}, the number of documents; got "
                    f"{self.document}."
                )


@dataclass(frozen=True, kw_only=True)
class CroppedMask(_Perturbation):
    """The document's tokens see the first token and themselves, causally, in the lower layers.

    Their hidden states then are those of the beginning of a prompt, while rotary positions and
    all other tokens' attention stay.

    Attributes:
        document: 0-based position of the document.
        layers: 0-based; by default the first eight (the paper's layers 1 to 8).

    References:
        arXiv:2406.02536, appendix C ("crop mask").

    Raises:
        MethodConfigError: parameters that make no sense, or a document that a prompt lacks.
    """

    name: ClassVar[str] = "cropped_mask"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="Cropped mask",
        paper="arXiv:2406.02536",
        idea="One document sees nothing but itself and the first token, in the lower layers.",
        cost="one document's attention once more",
        requires="softmax attention over the whole prompt, through the attention interface",
        can_hurt_when="always: it is for analysis",
    )

    layers: tuple[int, ...] = tuple(range(8))

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        self._check(prompts, traits)
        layers = chosen_layers([i for i in self.layers if i < traits.num_layers], traits)
        return AttentionPlan.uniform(layers, Crop(document=self.document))


@dataclass(frozen=True, kw_only=True)
class MovedPositions(_Perturbation):
    """The last token attends to the document as if its positions were elsewhere.

    Keys of the document are rotated to the beginning or to the end of all documents, for the query
    of the last prompt token and of generated ones; all other rows attend as ever.

    Attributes:
        document: 0-based position of the document.
        to: ``"beginning"``: right behind the text before the documents; ``"end"``: right before
            the text behind them.

    References:
        arXiv:2406.02536, appendix C ("PE to beginning", "PE to end").

    Raises:
        MethodConfigError: parameters that make no sense, or a document that a prompt lacks.
    """

    name: ClassVar[str] = "moved_positions"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="Moved positions",
        paper="arXiv:2406.02536",
        idea="The last token attends to one document at other positions.",
        cost="the last token's attention once more",
        requires="rotary positions; softmax attention over the whole prompt",
        can_hurt_when="always: it is for analysis",
    )

    to: Literal["beginning", "end"] = option("beginning", one_of(Literal["beginning", "end"]))

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        self._check(prompts, traits)
        require_rope(self.name, traits)
        for layer in traits.layers.values():
            if layer.uses_rope and (layer.rotary is None or layer.norms_after_rope):
                raise unsupported(traits, f"{self.name} cannot turn rotated keys of this model.")
        layers = chosen_layers(None, traits, rotated=True)
        return AttentionPlan.uniform(layers, Move(document=self.document, to=self.to))


@dataclass(frozen=True, kw_only=True)
class DoubledAttention(_Perturbation):
    r"""The last token's attention weights on the document are multiplied after the softmax.

    .. math:: o = \sum_j f_j a_j v_j, \qquad f_j = f \text{ in the document, else } 1

    for the last prompt token and generated ones, in all heads; all other rows attend as ever.
    Whether the paper divides by the sum afterwards, and in which layers it doubles, is not checked:
    by default weights are not renormalised, and all layers change.

    Attributes:
        document: 0-based position of the document.
        factor: of its weights; 1 changes nothing.
        layers: 0-based; None for all.
        renormalise: divide the weights by their sum, so that they add up to 1 again.

    References:
        arXiv:2406.02536, appendix D.

    Raises:
        MethodConfigError: parameters that make no sense, or a document that a prompt lacks.
    """

    name: ClassVar[str] = "doubled_attention"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="Doubled attention",
        paper="arXiv:2406.02536",
        idea="The last token weighs one document more.",
        cost="the last token's attention once more",
        requires="softmax attention over the whole prompt, through the attention interface",
        can_hurt_when="always: it is for analysis",
    )

    factor: float = option(2.0, number(least=0))
    layers: tuple[int, ...] | None = None
    renormalise: bool = False

    @property
    def is_neutral(self) -> bool:
        return self.factor == 1

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        self._check(prompts, traits)
        change = Multiply(document=self.document, factor=self.factor, renormalise=self.renormalise)
        return AttentionPlan.uniform(chosen_layers(self.layers, traits), change)


@dataclass(frozen=True, kw_only=True)
class ShiftedChannel(_Perturbation):
    """A constant is added to one channel of the document's hidden states.

    The hidden states are the input of the attention, as for positional hidden states: queries, keys
    and values of the document's tokens change.

    Attributes:
        document: 0-based position of the document.
        channel: index into the hidden size. There is no default: it is another in every model.
        offset: what is added.
        layers: 0-based; None for all.

    References:
        arXiv:2406.02536, appendix D: 0.3 subtracted from channel 213 of Mistral-7B, for one pair.
        Which layers is not checked.

    Raises:
        MethodConfigError: parameters that make no sense, a channel that the model does not have, or
            a document that a prompt lacks.
    """

    name: ClassVar[str] = "shifted_channel"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="Shifted channel",
        paper="arXiv:2406.02536",
        idea="One channel of one document's hidden states is moved.",
        cost="nothing",
        requires="softmax attention over the whole prompt, through the attention interface",
        can_hurt_when="always: it is for analysis",
    )

    channel: int = no_default(
        "ShiftedChannel needs the channel to move: pass channel.", example=0, rule=whole(0)
    )
    offset: float = option(-0.3, number())
    layers: tuple[int, ...] | None = None

    @property
    def is_neutral(self) -> bool:
        return self.offset == 0

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        self._check(prompts, traits)
        if self.channel >= traits.hidden_size:
            raise MethodConfigError(
                f"ShiftedChannel: channel must be below {traits.hidden_size}, the hidden size of "
                f"this {traits.model_type} model; got {self.channel}."
            )
        change = Shift(document=self.document, channel=self.channel, offset=self.offset)
        return AttentionPlan.uniform(chosen_layers(self.layers, traits), change)


def perturbations(
    channel: int | None = None, offset: float = -0.3
) -> dict[str, Callable[[int], Method]]:
    """What makes the perturbation of a document, by the paper's name; first the model as it is.

    Args:
        channel: that is moved in the last one; None to leave that one out.
        offset: by which it is moved.
    """
    methods: dict[str, Callable[[int], Method]] = {
        "as it is": lambda document: NoMethod(),
        "PE to beginning": lambda document: MovedPositions(document=document),
        "PE to end": lambda document: MovedPositions(document=document, to="end"),
        "crop mask": lambda document: CroppedMask(document=document),
        "doubled attention": lambda document: DoubledAttention(document=document),
    }
    if channel is not None:
        methods[f"channel {channel} {offset:+g}"] = lambda document: ShiftedChannel(
            document=document, channel=channel, offset=offset
        )
    return methods
