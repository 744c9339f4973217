"""Attention of tokens that pass the model twice: to see what is relevant, and to attend to it.

A generated token begins with a pass that stops after the last retrieval head and leaves the cache
alone. Then the model's own pass runs, with scaled attention. A prompt is read as ever, which shows
the retrieval heads of its last tokens; then those that are to attend otherwise are read again, one
after the other, and their keys and values replace the first ones. Each comes with the token after
it, whose retrieval heads are asked in the same pass.

Scaled attention is the model's with a bias of ``log strength`` on the selected tokens. Weights are
computed of retrieval heads alone.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import log
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from rag_middle.attention import (
    AttentionContext,
    Layer,
    LayerChange,
    LayerHandler,
    last_rows_attention,
)
from rag_middle.attention.caches import RereadingCache
from rag_middle.attention.core import refuse_backward
from rag_middle.attention.rotary import rotary_modules
from rag_middle.attention.seam import cache_name, keyword_arguments, uncompiled
from rag_middle.errors import UnsupportedGenerationError

if TYPE_CHECKING:
    from rag_middle.methods.dysco import DySCO


def updated_relevance(attention: Tensor, earlier: Tensor | None, decay: float) -> Tensor:
    """Relevance `[b, n]` of all tokens so far, each row with a sum of one.

    Args:
        attention: of the newest token over all, averaged over retrieval heads, `[b, n]`; zero in
            rows where it is padding.
        earlier: relevance found at the tokens before, `[b, m]` with `m <= n`; ``None`` for none.
        decay: of `earlier`.
    """
    relevance = attention
    if earlier is not None:
        width = attention.shape[1] - earlier.shape[1]
        relevance = attention + decay * torch.nn.functional.pad(earlier, (0, width))
    # Rows of padding stay zero.
    total = relevance.sum(-1, keepdim=True)
    return relevance / total.clamp(min=torch.finfo(total.dtype).tiny)


def selected_tokens(relevance: Tensor, top_p: float, top_k: int) -> Tensor:
    """The most relevant tokens, as `[b, n]` of truth values.

    As many as hold `top_p` of the relevance or less together, at least one and at most `top_k`.

    Args:
        relevance: `[b, n]`, with a sum of one per row.
        top_p: the share.
        top_k: the number.
    """
    values, order = relevance.topk(min(top_k, relevance.shape[1]))
    kept = values.cumsum(-1) <= top_p
    kept[:, 0] = True
    return torch.zeros_like(relevance, dtype=torch.bool).scatter(-1, order, kept)


@dataclass(frozen=True, slots=True)
class RelevanceScaling(LayerChange):
    """Scores of tokens that retrieval heads find relevant grow by a constant, in every layer.

    Attributes:
        method: with its options.
        never_selected: per prompt, positions of tokens that are not selected.
    """

    claims = frozenset({"weights"})

    method: DySCO
    never_selected: tuple[tuple[int, ...], ...]

    def start(self, layer: Layer) -> LayerHandler:
        passes = layer.request.shared("dysco", lambda: _Passes(self, layer))
        return _ScaledLayer(layer, passes)


class _SeenEnough(Exception):  # noqa: N818 - ends a pass, and is no error
    """All retrieval heads have attended."""


def _check_rereadable(model: nn.Module) -> None:
    """Refuse adapters that PEFT weighs by the tokens of a pass, and layers that drop caches."""
    for part in model.modules():
        for hook in part._forward_pre_hooks.values():
            keywords = getattr(hook, "keywords", {})
            if "scalings" in keywords or any(keywords.get("alora_offsets") or ()):
                raise UnsupportedGenerationError(
                    "DySCO reads single tokens again, and adapters of this model (X-LoRA, aLoRA) "
                    "go by all tokens of a pass: use LoRA, or another method."
                )
        if part.training and getattr(part, "gradient_checkpointing", False):
            raise UnsupportedGenerationError(
                "DySCO reads tokens twice, and layers under gradient checkpointing drop the keys "
                "and values that this takes. No gradients pass through attention under DySCO "
                "anyway: call model.eval() first, or use method='none'."
            )


class _Passes:
    """What the layers of a request share: which pass runs, and what retrieval heads have shown.

    Attributes:
        now: the pass. The model reads several tokens as ever, or a generated one with scaled
            attention; a nested pass looks at a token first, with attention as ever, or reads one
            again that is stored, and looks at the token after it.
        column: of the token that is read again.
        selected: columns of higher scores, `[b, columns]`.
        relevance: of every column, `[b, columns]`; ``None`` before the prompt has been read.
        attention: of retrieval heads, a sum over them, by column of the query: `[b, columns]`.
        observed: columns whose retrieval heads are asked while several tokens are read.
    """

    def __init__(self, change: RelevanceScaling, layer: Layer) -> None:
        self.method = change.method
        self._never_selected = change.never_selected
        self.request = layer.request
        self.now: Literal["outside", "several", "one", "before", "again"] = "outside"
        self.column = 0
        self.selected: Tensor | None = None
        self.relevance: Tensor | None = None
        self.attention: dict[int, Tensor] = {}
        self.observed = range(0)
        self.handlers: list[_ScaledLayer] = []
        #: `bias`, by what else decides it.
        self._biases: dict[Hashable, Tensor] = {}
        #: Layers that the nested pass under way has reached.
        self.reached: list[Layer] = []
        before = partial(layer.model.register_forward_pre_hook, with_kwargs=True)
        after = partial(layer.model.register_forward_hook, with_kwargs=True)
        layer.hook(before, self._before_pass)
        layer.hook(after, self._after_pass)
        #: The last position of the pass whose tokens are read again.
        self._last_position: Tensor | None = None
        self._own_positions: Tensor | None = None
        for rotary in rotary_modules(layer.model):
            before = partial(rotary.register_forward_pre_hook, with_kwargs=True)
            after = partial(rotary.register_forward_hook, with_kwargs=True)
            layer.hook(before, self._lengthened)
            layer.hook(after, self._shortened)

    def _lengthened(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Let a rotary module see how long the prompt is where some of it is read again.

        Frequencies may follow the last position of a pass, and those of a token that is read again
        are those with which the others were read.
        """
        if self.now != "again" or self._last_position is None:
            return None
        arguments = keyword_arguments(uncompiled(module), args, kwargs)
        positions: Tensor = arguments["position_ids"]
        self._own_positions = positions
        last = self._last_position.to(positions).expand(*positions.shape[:-1], 1)
        return (), arguments | {"position_ids": torch.cat((positions, last), dim=-1)}

    def _shortened(
        self, _module: nn.Module, _args: tuple[Any, ...], kwargs: dict[str, Any], made: Any
    ) -> Any:
        if self.now != "again" or self._last_position is None:
            return None
        kwargs["position_ids"] = self._own_positions  # for hooks that come after this one
        if isinstance(made, Tensor):
            return made[..., :-1, :]
        return tuple(table[..., :-1, :] for table in made)

    def _before_pass(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.now in ("before", "again"):
            return
        arguments = keyword_arguments(model, args, kwargs)
        cache = arguments.get(cache_name(arguments))
        # Also after a pass that was interrupted.
        self.observed, self.now = range(0), "several"
        self.attention.clear()
        one = _input_of(arguments)[1].shape[1] == 1 and self.relevance is not None
        # Asking a static cache how long it is waits for the device: only where it must be asked.
        if one and cache is not None and (self.request.width > 1 or cache.get_seq_length()):
            with self._nested("before"):
                model(**arguments)
            self.advance(max(self.attention))
            self.now = "one"

    def _after_pass(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        if self.now in ("before", "again"):
            return
        if self.now == "several" and self.observed:
            _check_rereadable(model)
            arguments = keyword_arguments(model, args, kwargs)
            with torch.no_grad():
                self._read_again(model, arguments, output)
        self.now, self.observed = "outside", range(0)

    def _read_again(self, model: nn.Module, arguments: dict[str, Any], output: Any) -> None:
        """Read the last tokens of a pass again, one after the other, with scaled attention."""
        name, inputs = _input_of(arguments)
        results = _results(output)
        if not all(handler.stored is not None for handler in self.handlers):
            raise UnsupportedGenerationError(
                "DySCO reads tokens again in all layers, and this pass left some out (early exit). "
                "Leave assistant_early_exit out."
            )
        first, stop = self.observed[-1], self.handlers[0].stop
        for column in self.observed[:-1]:
            self.advance(column)
        positions = arguments.get("position_ids")
        if positions is None and (rotary := self.request.tables.of(None)) is not None:
            positions = rotary.position_ids  # some models count from 1
        rotary = self.request.tables.of(None)
        self._last_position = None if rotary is None else rotary.position_ids.max()
        for column in range(first, stop):
            back = column - stop  # from the end: negative
            columns = range(column, min(column + 2, stop))
            span = slice(back, back + len(columns) or None)
            at = (
                torch.arange(columns.start, columns.stop, device=inputs.device)[None]
                if positions is None
                else positions[..., span]
            )
            self.column = column
            self.advance(column)
            with self._nested("again"):
                # The cache stays empty: layers have the keys and values they need.
                again = model(
                    **{name: inputs[:, span], cache_name(arguments): RereadingCache(column)},
                    position_ids=at,
                    use_cache=True,
                )
            if -back <= results.shape[1]:
                results[:, back] = _results(again)[:, 0].to(results)
        for handler in self.handlers:
            handler.end_reading(first, keep=arguments.get("use_cache") is not False)

    @contextmanager
    def _nested(self, now: Literal["before", "again"]) -> Iterator[None]:
        outer, self.now = self.now, now
        self._biases.clear()
        try:
            yield
        except _SeenEnough:
            pass
        finally:
            self.now = outer
            for layer in self.reached:
                layer.end_call(0)  # nothing was added to the cache
            self.reached.clear()

    def bias(self, query: Tensor, stop: int) -> Tensor | None:
        """What is added to scores in the pass under way, made once for all layers.

        Args:
            query: `[b, h, m, d]`, of one token, or of the one that is read again and the next.
            stop: columns up to the tokens and with them.

        Returns:
            `[b, 1, m, stop]`, `-inf` on padding; ``None`` for nothing.
        """
        padded = any(group.padding for group in self.request.groups)
        if self.now == "before" and not padded:
            return None
        key = (query.device, query.dtype)
        if key in self._biases:
            return self._biases[key]
        bias = query.new_zeros(query.shape[0], query.shape[2], stop)
        if self.now != "before":
            assert self.selected is not None
            selected = self.selected.to(query.device)
            bias[:, 0, : selected.shape[1]] = selected.to(bias) * log(self.method.strength)
        if padded:
            columns = torch.arange(stop, device=query.device)
            padding = columns < self.request.paddings(query.device)[:, None, None]
            # Padding sees itself: a row that sees nothing is NaN, and what attends to it later too.
            own = columns == columns[stop - query.shape[2] :, None]
            bias = bias.masked_fill(padding & ~own, -torch.inf)
        self._biases[key] = bias[:, None]
        return self._biases[key]

    def advance(self, column: int) -> None:
        """From retrieval heads' attention at a column to the columns that it selects."""
        method = self.method
        attention = self.attention.pop(column) / len(method.heads)
        self.relevance = updated_relevance(attention, self.relevance, method.decay)
        selected = selected_tokens(self.relevance, method.top_p, method.top_k)
        rows = self.request.row_layouts()
        repeats = len(rows) // len(self._never_selected)
        for row, (padding, _) in enumerate(rows):
            never = self._never_selected[row // repeats]
            if never:
                columns = torch.tensor(never, device=selected.device) + padding
                selected[row, columns[columns <= column]] = False
        selected[:, -1] = True
        self.selected = selected
        self._biases.clear()


class _ScaledLayer(LayerHandler):
    def __init__(self, layer: Layer, passes: _Passes) -> None:
        self._passes = passes
        passes.handlers.append(self)
        index = layer.traits.layer
        heads = passes.method.heads
        self._heads = [head for of, head in heads if of == index]
        self._is_last = index == max(of for of, _ in heads)
        #: The same heads and their key heads on the device, once the first token was seen.
        self._indices: tuple[Tensor, Tensor] | None = None
        #: Columns read in the pass over several tokens end here.
        self.stop = 0
        #: Keys and values of a pass over several tokens, while some are still to be read again.
        self.stored: tuple[Tensor, Tensor] | None = None
        self._dropped = 0
        #: Whether those tensors are the cache's own: what is written to them stays.
        self._is_cache = False
        #: Column, keys and values of what was read again, where it does not.
        self._again: list[tuple[int, Tensor, Tensor]] = []
        #: The first column of generated tokens, and keys from there on, before beams move.
        self._newest_keys: tuple[int, Tensor] | None = None

    def attend(self, context: AttentionContext) -> tuple[Tensor, Tensor | None]:
        passes, call = self._passes, context.call
        if passes.now == "outside":
            refuse_backward()
            raise UnsupportedGenerationError(
                "DySCO reads tokens twice and acts where the model itself is called: call the "
                "model that was given, not a part of it."
            )
        if passes.now in ("before", "again"):
            passes.reached.append(context.layer)
        if passes.now == "again":
            return self._attend_again(context)
        if passes.now == "before":
            assert passes.relevance is not None
            rows, columns = passes.relevance.shape
            if rows not in (1, len(call.query)) or columns != context.start:
                raise UnsupportedGenerationError(
                    f"DySCO has followed {rows} rows up to token {columns}, and is asked to go on "
                    f"from token {context.start} in {len(call.query)} rows. Of a cache and its "
                    "copies, one is continued, and it keeps its rows."
                )
            index = context.layer.traits.layer
            context.cache.cache = _with_copied_layer(context.cache.cache, index)
        self.stored = None  # a growing cache lets go of these tensors as it makes new ones
        context.store()
        self._dropped = max(0, context.stop - call.key.shape[2])
        if not context.start:
            self._again.clear()
        for first, key, value in self._again:  # in layers that copy what they are given
            _write(call.key, key, first - self._dropped)
            _write(call.value, value, first - self._dropped)
        if passes.now == "several":
            output, weights = context.attention.attend(call)
            self._observe(context)
            return output, weights
        if passes.now == "before" and self._is_last:
            self._follow_beams(context)
        return self._attend_to(context, call.key, call.value, context.start)

    def _observe(self, context: AttentionContext) -> None:
        """After a pass over several tokens: what retrieval heads did, and what was stored."""
        passes, call, method = self._passes, context.call, self._passes.method
        width = context.layer.request.width
        if not passes.observed:
            first = max(context.start, width - method.changed_prompt_tokens, 0)
            observed = 0 if context.start else method.observed_tokens
            passes.observed = range(max(0, first - observed), first + 1)
            if not context.start:
                passes.relevance = None
        self.stop = context.stop
        self.stored = call.key, call.value
        cache = context.cache.cache
        layers = [] if cache is None else cache.layers
        index = context.layer.traits.layer
        self._is_cache = index < len(layers) and layers[index].keys is call.key
        if self._heads:
            for column in passes.observed:
                row = call.query[:, :, column - context.start, None]
                self._ask(context, row, call.key, column)

    def _attend_again(self, context: AttentionContext) -> tuple[Tensor, Tensor | None]:
        """Of a token whose column is stored already: its new key and value replace those."""
        assert self.stored is not None
        key, value = self.stored
        column = self._passes.column
        _write(key, context.call.key, column - self._dropped)
        _write(value, context.call.value, column - self._dropped)
        return self._attend_to(context, key, value, column)

    def _attend_to(
        self, context: AttentionContext, key: Tensor, value: Tensor, column: int
    ) -> tuple[Tensor, Tensor | None]:
        """Output of a token at this column, and of the next one where there are two."""
        passes, call = self._passes, context.call
        stop = column + call.query.shape[2]
        looks = passes.now == "before"
        if self._heads and (looks or call.query.shape[2] > 1):
            self._ask(context, call.query[:, :, -1:], key, stop - 1)
        if looks and self._is_last:
            raise _SeenEnough
        if not looks:
            first = max(self._dropped, context.layer.request.width)
            if self._is_last and column >= first:
                newest = slice(first - self._dropped, column + 1 - self._dropped)
                self._newest_keys = first, key[:, :, newest].clone()
            else:  # of a prompt: its rows are alike, wherever they stand
                self._newest_keys = None
        end = stop - self._dropped
        call.key, call.value = key[:, :, :end], value[:, :, :end]
        return context.attention.attend_biased(call, passes.bias(call.query, stop), stop), None

    def _ask(self, context: AttentionContext, query: Tensor, key: Tensor, column: int) -> None:
        """Note what this layer's retrieval heads attend to from `query` `[b, h, 1, d]`."""
        if self._indices is None:  # a list as an index would be copied to the device every time
            heads = torch.tensor(self._heads, device=query.device)
            self._indices = heads, heads // (query.shape[1] // key.shape[1])
        heads, of_keys = self._indices
        traits = context.layer.traits
        first = context.layer.request.paddings(query.device)
        if traits.attention_chunk is not None:
            position = (column - first).clamp(min=0)
            first = first + position // traits.attention_chunk * traits.attention_chunk
        sinks: Tensor | None = context.call.options.get("s_aux")
        weights = last_rows_attention(
            query[:, heads],
            key[:, of_keys, : column + 1 - self._dropped],
            traits,
            padding=first - self._dropped,
            sinks=None if sinks is None else sinks[heads],
        )
        received = weights.nan_to_num(0.0)[:, :, 0].sum(1)  # NaN where the query is padding
        received = torch.nn.functional.pad(received, (self._dropped, 0))
        attention = self._passes.attention
        if column in attention:
            received = attention[column] + received.to(attention[column].device)
        attention[column] = received

    def _follow_beams(self, context: AttentionContext) -> None:
        """Find out how a beam search has put the rows of the cache: by their newest keys.

        Of all generated tokens: in the first layer, a key says only which token it belongs to.
        """
        prompts = len(context.layer.request.layouts)
        if self._newest_keys is None or len(self._newest_keys[1]) == prompts:
            return
        first, newest = self._newest_keys
        start = max(first, self._dropped)
        newest = newest[:, :, start - first :]
        key = context.call.key[:, :, start - self._dropped : context.start - self._dropped]
        if torch.equal(key, newest):
            return
        # Rows move among those of their prompt.
        beams = len(key) // prompts
        key, newest = (keys.unflatten(0, (prompts, beams)).flatten(2) for keys in (key, newest))
        alike = (key[:, :, None] == newest[:, None]).all(-1)
        if not bool(alike.any(-1).all()):
            raise UnsupportedGenerationError(
                "DySCO cannot tell which rows of the cache a beam search has kept: use a cache "
                "that keeps keys as they are, or generate without beams."
            )
        relevance = self._passes.relevance
        assert relevance is not None
        rows = alike.int().argmax(-1) + beams * torch.arange(prompts, device=alike.device)[:, None]
        self._passes.relevance = relevance[rows.flatten().to(relevance.device)]

    def end_reading(self, first: int, *, keep: bool) -> None:
        """Remember what was read again from column `first` on; let go of everything else."""
        assert self.stored is not None
        if keep and not self._is_cache:
            span = slice(first - self._dropped, self.stop - self._dropped)
            key, value = (stored[:, :, span].clone() for stored in self.stored)
            self._again.append((first, key, value))
        self.stored = None


def _input_of(arguments: dict[str, Any]) -> tuple[str, Tensor]:
    """Name and tensor of what the model reads: token ids `[b, n]`, or embeddings."""
    for name in ("input_ids", "inputs_embeds"):
        if arguments.get(name) is not None:
            return name, arguments[name]
    raise UnsupportedGenerationError("DySCO needs input_ids or inputs_embeds in each call.")


def _results(output: Any) -> Tensor:
    """Logits; hidden states of a model without a head."""
    made: Tensor = output.logits if hasattr(output, "logits") else output[0]
    return made


def _write(whole: Tensor, part: Tensor, start: int) -> None:
    """Put columns `part` into `whole`, `[b, g, n, d]`, what is before its beginning left out."""
    part = part[:, :, max(0, -start) :]
    start = max(0, start)
    if part.shape[2]:
        whole[:, :, start : start + part.shape[2]] = part


def _with_copied_layer(cache: Any, index: int) -> Any:
    """The cache with a layer that can be updated, and the other is none the wiser."""
    layer = copy.copy(cache.layers[index])
    for name, value in list(vars(layer).items()):
        if isinstance(value, dict):
            setattr(layer, name, dict(value))
        elif isinstance(value, Tensor) and layer.is_compileable:
            setattr(layer, name, value.clone())  # static caches write into their tensors
    changed = copy.copy(cache)
    changed.layers = [*cache.layers[:index], layer, *cache.layers[index + 1 :]]
    return changed
