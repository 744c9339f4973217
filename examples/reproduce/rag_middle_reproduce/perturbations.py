"""Perturbations of one document's positional information (arXiv:2406.02536, appendices C and D).

Which of the two makes attention fall off in the middle, the causal mask (through the hidden states
that it shapes) or the position embedding? Each is changed for the gold document alone. And does
more attention to it give more right answers? That of the last token to it is doubled. And one
channel that carries position may be moved in its hidden states::

    python -m rag_middle_reproduce.perturbations --model mistralai/Mistral-7B-Instruct-v0.2 \
        --channel 213

prints the accuracy of key-value retrieval for every position of the gold pair, as it is and under
each perturbation.
"""

from __future__ import annotations

import argparse
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from rag_middle import MethodConfigError, RagMiddleError, RagMiddleModel
from rag_middle.attention import (
    AttentionContext,
    AttentionPlan,
    Layer,
    LayerChange,
    LayerHandler,
    ModelTraits,
    RowGroup,
    attention_scores,
    last_rows_attention,
    pair_tables,
)
from rag_middle.evaluation import KeyValueRetrieval, position, spread_positions
from rag_middle.methods.base import (
    Method,
    MethodInfo,
    chosen_layers,
    no_default,
    require_count,
    require_finite,
)
from rag_middle.methods.none import NoMethod
from rag_middle.methods.requirements import require_interface, require_rope, unsupported
from rag_middle.ops.rope import rotate
from rag_middle.tokens import TokenizedPrompt
from rag_middle_reproduce.models import add_model_options, load_by_name

__all__ = [
    "CroppedMask",
    "DoubledAttention",
    "MovedPositions",
    "ShiftedChannel",
    "accuracies",
    "main",
]

_GOLD = "needs the 0-based position of the document to perturb: pass document."


@dataclass(frozen=True, kw_only=True)
class _Perturbation(Method):
    conflicts: ClassVar[dict[str, str]] = {"*": "a perturbation is compared with the plain model"}

    document: int = no_default(f"A perturbation {_GOLD}", example=0)

    def __post_init__(self) -> None:
        require_count(type(self).__name__, 0, document=self.document)

    @property
    def needs_documents(self) -> bool:
        return True

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
        return AttentionPlan.uniform(layers, _Crop(document=self.document))


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

    to: Literal["beginning", "end"] = "beginning"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.to not in ("beginning", "end"):
            raise MethodConfigError(
                f"MovedPositions: to must be 'beginning' or 'end', got {self.to!r}."
            )

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        self._check(prompts, traits)
        require_rope(self.name, traits)
        for layer in traits.layers.values():
            if layer.uses_rope and (layer.rotary is None or layer.norms_after_rope):
                raise unsupported(traits, f"{self.name} cannot turn rotated keys of this model.")
        layers = chosen_layers(None, traits, rotated=True)
        return AttentionPlan.uniform(layers, _Move(document=self.document, to=self.to))


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

    factor: float = 2.0
    layers: tuple[int, ...] | None = None
    renormalise: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_finite("DoubledAttention", factor=self.factor)
        if self.factor < 0:
            raise MethodConfigError(f"DoubledAttention: factor must be >= 0, got {self.factor}.")

    @property
    def is_neutral(self) -> bool:
        return self.factor == 1

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        self._check(prompts, traits)
        change = _Multiply(document=self.document, factor=self.factor, renormalise=self.renormalise)
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

    channel: int = no_default("ShiftedChannel needs the channel to move: pass channel.", example=0)
    offset: float = -0.3
    layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("ShiftedChannel", 0, channel=self.channel)
        require_finite("ShiftedChannel", offset=self.offset)

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
        change = _Shift(document=self.document, channel=self.channel, offset=self.offset)
        return AttentionPlan.uniform(chosen_layers(self.layers, traits), change)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Crop(LayerChange):
    claims = frozenset({"visibility"})

    document: int

    def start(self, layer: Layer) -> LayerHandler:
        return _CropHandler(layer, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Move(LayerChange):
    claims = frozenset({"positions"})

    document: int
    to: str

    def start(self, layer: Layer) -> LayerHandler:
        return _MoveHandler(layer, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Multiply(LayerChange):
    claims = frozenset({"weights"})

    document: int
    factor: float
    renormalise: bool

    def start(self, layer: Layer) -> LayerHandler:
        return _MultiplyHandler(layer, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shift(LayerChange):
    claims = frozenset({"hidden"})

    document: int
    channel: int
    offset: float

    def start(self, layer: Layer) -> LayerHandler:
        return _ShiftHandler(layer, self)


class _ShiftHandler(LayerHandler):
    def __init__(self, layer: Layer, change: _Shift) -> None:
        self._layer = layer
        self._change = change

    def before(self, arguments: dict[str, Any]) -> None:
        hidden = arguments["hidden_states"].clone()  # [b, n, hidden]
        request, cached = self._layer.request, self._layer.start
        request.see(hidden.shape[0], hidden.shape[1], cached)
        for group in request.groups:
            start, end = (
                max(0, group.padding + at - cached)
                for at in group.layout.documents[self._change.document]
            )
            hidden[list(group.rows), start:end, self._change.channel] += self._change.offset
        arguments["hidden_states"] = hidden


class _Handler(LayerHandler):
    """Attends as the model does, then computes some rows of the output anew."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer

    def attend(self, context: AttentionContext) -> tuple[Tensor, Tensor | None]:
        output, _ = context.proceed()  # [b, n, h, dv]
        output = output.clone()
        for group in self._layer.request.groups:
            rows, attended = self._rows(context, group)
            if attended is not None:
                output[list(group.rows), rows] = attended.transpose(1, 2).to(output.dtype)
        return output, None

    def _last_tokens(self, context: AttentionContext) -> int:
        """Rows of the last prompt token and what was generated after it."""
        return context.stop - max(context.start, self._layer.request.width - 1)

    def _weights(
        self, context: AttentionContext, group: RowGroup, key: Tensor, count: int
    ) -> Tensor:
        """Attention weights of the last `count` tokens over `key`, `[r, h, count, n]`."""
        padding = torch.full((len(group.rows),), group.padding, device=key.device)
        query = group.take(context.call.query)[:, :, -count:]
        return last_rows_attention(query, key, self._layer.traits, padding=padding)

    @abstractmethod
    def _rows(self, context: AttentionContext, group: RowGroup) -> tuple[slice, Tensor | None]:
        """Which rows of the call, and their output `[r, h, rows, dv]`; None for nothing."""


def _weighted(weights: Tensor, values: Tensor) -> Tensor:
    """`[r, h, rows, dv]` of weights `[r, h, rows, n]` and values `[r, g, n, dv]`."""
    values = values.repeat_interleave(weights.shape[1] // values.shape[1], dim=1)
    return weights.to(values.dtype) @ values


class _CropHandler(_Handler):
    def __init__(self, layer: Layer, change: _Crop) -> None:
        super().__init__(layer)
        self._document = change.document

    def _rows(self, context: AttentionContext, group: RowGroup) -> tuple[slice, Tensor | None]:
        start, end = (group.padding + at for at in group.layout.documents[self._document])
        rows = slice(start, end)
        if context.start or start == end:
            return rows, None  # the document has been read
        columns = sorted({group.padding, *range(start, end)})
        query = group.take(context.call.query)[:, :, rows]
        key, value = (group.take(x)[:, :, columns] for x in (context.call.key, context.call.value))
        scores = attention_scores(query, key, self._layer.traits)
        device = scores.device
        future = (
            torch.tensor(columns, device=device) > torch.arange(start, end, device=device)[:, None]
        )
        return rows, _weighted(scores.masked_fill(future, -torch.inf).softmax(-1), value)


class _MoveHandler(_Handler):
    def __init__(self, layer: Layer, change: _Move) -> None:
        super().__init__(layer)
        self._change = change

    def _rows(self, context: AttentionContext, group: RowGroup) -> tuple[slice, Tensor | None]:
        call, layout = context.call, group.layout
        count = self._last_tokens(context)
        start, end = layout.documents[self._change.document]
        if start == end:
            return slice(0), None
        target = layout.prefix_tokens
        if self._change.to == "end":
            target = layout.suffix_start - (end - start)
        key, value = (group.take(x)[:, :, : context.stop] for x in (call.key, call.value))
        key = key.clone()
        moved = slice(group.padding + start, group.padding + end)
        key[:, :, moved] = self._turned(key[:, :, moved], target - start)
        weights = self._weights(context, group, key, count)
        return slice(call.query.shape[2] - count, None), _weighted(weights, value)

    def _turned(self, key: Tensor, shift: int) -> Tensor:
        """Rotated keys, rotated by `shift` positions more: ``R(m + s) = R(m) R(s)``."""
        traits, rotary = self._layer.traits, self._layer.rotary
        assert rotary is not None
        assert traits.rotary is not None
        cos, sin = rotary.at(torch.tensor([[0, shift]], device=rotary.x.device))
        tables = pair_tables(cos, sin, traits.table_format)
        cos, sin = (table[0].to(key.device) for table in tables)
        factor = cos[0]  # what yarn and its like multiply in: the keys bear it already
        return rotate(key, cos[1] / factor, sin[1] / factor, traits.rotary)


class _MultiplyHandler(_Handler):
    def __init__(self, layer: Layer, change: _Multiply) -> None:
        super().__init__(layer)
        self._change = change

    def _rows(self, context: AttentionContext, group: RowGroup) -> tuple[slice, Tensor | None]:
        call, count = context.call, self._last_tokens(context)
        start, end = (group.padding + at for at in group.layout.documents[self._change.document])
        key, value = (group.take(x)[:, :, : context.stop] for x in (call.key, call.value))
        weights = self._weights(context, group, key, count)
        weights[..., start:end] *= self._change.factor
        if self._change.renormalise:
            weights = weights / weights.sum(-1, keepdim=True)
        return slice(call.query.shape[2] - count, None), _weighted(weights, value)


#: By the paper's names.
PERTURBATIONS: dict[str, Callable[[int], Method]] = {
    "as it is": lambda document: NoMethod(),
    "PE to beginning": lambda document: MovedPositions(document=document),
    "PE to end": lambda document: MovedPositions(document=document, to="end"),
    "crop mask": lambda document: CroppedMask(document=document),
    "doubled attention": lambda document: DoubledAttention(document=document),
}


def accuracies(
    model: RagMiddleModel,
    task: KeyValueRetrieval,
    *,
    limit: int,
    positions: Sequence[int],
    perturbations: Mapping[str, Callable[[int], Method]] = PERTURBATIONS,
    max_batch_size: int = 8,
) -> dict[str, list[float]]:
    """Accuracy at every position of the gold document, by perturbation of that document."""
    items = task.items(limit, 0)
    curves: dict[str, list[float]] = {}
    for name, perturbation in perturbations.items():
        curves[name] = []
        for index in positions:
            answers = model.batch(
                [task.prompt(item, position(index)) for item in items],
                method=perturbation(index),
                max_new_tokens=task.max_new_tokens,
                max_batch_size=max_batch_size,
            )
            scores = [
                task.scores(item, position(index), answer.text)["best_subspan_em"]
                for item, answer in zip(items, answers, strict=True)
            ]
            curves[name].append(sum(scores) / len(scores))
    return curves


def main(arguments: list[str] | None = None) -> None:
    """Accuracy of key-value retrieval under each perturbation of the gold pair."""
    parser = argparse.ArgumentParser(
        prog="python -m rag_middle_reproduce.perturbations", description=main.__doc__
    )
    add_model_options(parser)
    parser.add_argument("--pairs", type=int, default=10, help="pairs in a prompt")
    parser.add_argument("--positions", type=int, default=5, help="positions of the gold pair")
    parser.add_argument("--limit", type=int, default=100, help="questions")
    parser.add_argument("--channel", type=int, help="also move this channel of hidden states")
    parser.add_argument("--offset", type=float, default=-0.3, help="by how much")
    parser.add_argument(
        "--try-out",
        action="store_true",
        help="one short prompt on the bundled reader: numbers mean nothing",
    )
    options = parser.parse_args(arguments)
    if options.try_out:
        vars(options).update(model="reader", pairs=3, positions=2, limit=1)
        options.channel = None if options.channel is None else 3
    perturbations = dict(PERTURBATIONS)
    if options.channel is not None:
        perturbations[f"channel {options.channel} {options.offset:+g}"] = lambda document: (
            ShiftedChannel(document=document, channel=options.channel, offset=options.offset)
        )
    positions = spread_positions(options.pairs, options.positions)
    try:
        curves = accuracies(
            load_by_name(options.model, dtype=options.dtype),
            KeyValueRetrieval(keys=options.pairs),
            limit=options.limit,
            positions=positions,
            perturbations=perturbations,
        )
    except RagMiddleError as error:
        sys.exit(f"Error: {error}")
    print("| gold position (0-based) |", " | ".join(map(str, positions)), "|")
    print("|" + " --- |" * (1 + len(positions)))
    for name, values in curves.items():
        print(f"| {name} |", " | ".join(f"{100 * value:.1f}" for value in values), "|")


if __name__ == "__main__":
    main()
