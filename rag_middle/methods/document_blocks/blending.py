"""CacheBlend in a transformers layer: a prompt read twice, apart and together.

The model first reads the prompt with its documents apart, which gives what a document KV cache
would hold. Then it reads the prompt as ever, and from the check layer on the keys and values of
document tokens that are not recomputed are replaced by those of the first reading. All else of the
second reading, masks, windows, sinks and caches, is the model's own. Tokens that are not recomputed
pass the later layers too, where nothing attends to them: who wants to save that has a
`DocumentCache`, and is served by `rag_middle.methods.document_blocks.cached_blend`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from rag_middle.attention import AttentionContext, Layer, LayerHandler
from rag_middle.attention.caches import begins_prompt
from rag_middle.attention.core import refuse_backward
from rag_middle.attention.seam import CacheTap, cache_name, keyword_arguments, parameters
from rag_middle.errors import UnsupportedGenerationError
from rag_middle.methods.document_blocks import CacheBlend
from rag_middle.methods.document_blocks.kernels import deviations, most_deviating


class _Readings:
    """What the layers of a request share: how the prompt is being read.

    Attributes:
        apart: whether documents are read apart, in a nested pass.
        ready: whether they have been, for the pass under way.
        recomputed: columns whose keys and values are computed, `[b, n]`; known from the check layer
            on.
    """

    def __init__(self, method: CacheBlend, layer: Layer) -> None:
        self.method = method
        self.apart = self.ready = False
        self.recomputed: Tensor | None = None
        self._layer = layer
        before = partial(layer.model.register_forward_pre_hook, with_kwargs=True)
        layer.hook(before, self._before_pass)
        layer.hook(layer.model.register_forward_hook, self._after_pass)

    def _before_pass(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.apart:
            return
        self.ready, self.recomputed = False, None  # also after a pass that was interrupted
        arguments = keyword_arguments(model, args, kwargs)
        inputs = arguments.get("input_ids")
        columns = (arguments["inputs_embeds"] if inputs is None else inputs).shape[1]
        index, width = self._layer.traits.layer, self._layer.request.width
        cache = cache_name(arguments)
        if not begins_prompt(arguments.get(cache), index, columns, width):
            return
        # An empty cache: without one, models look through the positions for several prompts.
        arguments |= {cache: DynamicCache(), "use_cache": True, "labels": None}
        if "logits_to_keep" in parameters(type(model).forward):
            arguments["logits_to_keep"] = 1
        self.apart = True
        try:
            with torch.no_grad():
                model(**arguments)
        finally:
            self.apart = False
        self.ready = True

    def _after_pass(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not self.apart:
            self.ready, self.recomputed = False, None


class _StatesTap(CacheTap):
    """Takes the keys and values that a cache would get, and gives them to nobody."""

    def __init__(self) -> None:
        super().__init__(None)
        self.states: tuple[Tensor, Tensor] | None = None

    def store(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        self.states = key, value
        return key, value


class BlendingLayer(LayerHandler):
    """Keys and values of documents read apart, but for the tokens that deviate most."""

    def __init__(self, layer: Layer, method: CacheBlend) -> None:
        self._layer = layer
        self._readings = layer.request.shared("cacheblend", lambda: _Readings(method, layer))
        self._blocks = replace(method.reading, from_model=True).start(layer)
        #: Keys and values of the prompt whose documents were read apart.
        self._apart: tuple[Tensor, Tensor] | None = None

    def before(self, arguments: dict[str, Any]) -> None:
        """Rotary tables of documents that are read apart."""
        if self._readings.apart:
            self._blocks.before(arguments)

    def query_positions(self, rows: int, columns: int) -> Tensor | None:
        """Positions of documents that are read apart."""
        return self._blocks.query_positions(rows, columns) if self._readings.apart else None

    def attend(self, context: AttentionContext) -> tuple[Tensor, Tensor | None]:
        """Documents apart, or blended with what was read apart."""
        readings, index = self._readings, self._layer.traits.layer
        if readings.apart:
            context.cache = tap = _StatesTap()
            output = self._blocks.attend(context)
            self._apart = tap.states if index >= readings.method.check_layer else None
            return output
        if context.start == 0:
            if not readings.ready:
                refuse_backward()
                raise UnsupportedGenerationError(
                    "CacheBlend reads a prompt twice and acts where the model itself is called: "
                    "call the model that was given, not a part of it."
                )
            if self._apart is not None:
                self._blend(context, *self._apart)
                self._apart = None
        return context.proceed()

    def _blend(self, context: AttentionContext, key: Tensor, value: Tensor) -> None:
        """Replace keys and values of tokens that are not recomputed."""
        readings, call = self._readings, context.call
        if readings.recomputed is None:
            deviation = deviations(call.key, key, call.value, value)
            recomputed = torch.ones_like(deviation, dtype=torch.bool)
            for group in self._layer.request.groups:
                layout = group.layout
                span = slice(
                    group.padding + layout.prefix_tokens, group.padding + layout.suffix_start
                )
                recomputed[group.index, span] = most_deviating(
                    group.take(deviation)[:, span], readings.method.recompute_share
                )
            readings.recomputed = recomputed
        own = readings.recomputed.to(key.device)[:, None, :, None]
        call.key = torch.where(own, call.key, key)
        call.value = torch.where(own, call.value, value)
