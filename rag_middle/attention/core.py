"""One attention layer under a plan: the arguments of its module, its cache, its attention call."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any, NoReturn
from weakref import ref

import torch
from torch import Tensor, nn

from rag_middle.attention.capturing import skip_modules
from rag_middle.attention.change import AttentionContext, Layer, LayerChange
from rag_middle.attention.plan import in_order
from rag_middle.attention.rotary import own_heads
from rag_middle.attention.seam import AttentionCall, CacheTap, cache_argument, keyword_arguments
from rag_middle.attention.weights import ModelAttention
from rag_middle.errors import UnsupportedGenerationError

_NO_GRADIENTS = (
    "No gradients pass through attention under this method: they would be wrong. method='none' has "
    "them, and so do methods that change rotary positions only."
)


def refuse_backward() -> None:
    """Raise in a backward pass, which runs layers once more under gradient checkpointing.

    Raises:
        UnsupportedGenerationError: a backward pass runs in this thread.
    """
    if torch._C._current_graph_task_id() != -1:
        raise UnsupportedGenerationError(_NO_GRADIENTS)


class _WithoutGradients(torch.autograd.Function):
    """An output whose derivatives nobody knows: log-sum-exps of fused attention have none."""

    @staticmethod
    def forward(_context: Any, output: Tensor, *_inputs: Tensor) -> Tensor:
        return output.clone()

    @staticmethod
    def backward(_context: Any, *_gradients: Tensor) -> NoReturn:
        raise UnsupportedGenerationError(_NO_GRADIENTS)


class LayerCore:
    """Runs the handlers of one layer during one request.

    `before` sees the module's arguments, `attend` its attention call. Between the two, the
    module's own forward has projected (and, unless deferred, rotated) queries and keys.
    """

    def __init__(self, layer: Layer, changes: Iterable[LayerChange]) -> None:
        ordered = in_order(changes)
        self._layer = layer
        self._handlers = [change.start(layer) for change in ordered]
        #: False where other arguments are all the plan asks for: any backend runs unchanged.
        self.needs_attention_call = any(change.answers_attention for change in ordered)
        self._defers_rotation = layer.traits.uses_rope and any(
            change.defers_rotation for change in ordered
        )
        answering = [change for change in ordered if change.answers_attention]
        self._has_gradients = all(change.has_gradients for change in answering)
        self._has_own_attention = any("visibility" in change.claims for change in ordered)
        #: Queries and keys of the call under way are rotated by the table of each head.
        self._rotated_by_head = False
        self._arguments: dict[str, Any] = {}
        self._own_positions: Any = None
        self._tap = CacheTap(None)
        self._skipped = ExitStack()

    def before(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Forward pre-hook: the arguments the module shall run with."""
        arguments = keyword_arguments(module, args, kwargs)
        name = cache_argument(module)
        request, cache = self._layer.request, arguments.get(name) if name else None
        if cache is not None and request.cache() is not cache:
            request.cache = ref(cache)
        if not self.needs_attention_call:
            request.attention_calls += 1
            for handler in self._handlers:
                handler.before(arguments)
            return (), arguments
        columns = arguments["hidden_states"].shape[1]
        self._layer.start = self._layer.read.begin(cache, columns, request.width)
        self._tap = CacheTap(cache)
        if name is not None and cache is not None:
            arguments[name] = self._tap
        for handler in self._handlers:
            handler.before(arguments)
        self._rotated_by_head = False
        if self._defers_rotation and not self._tables_by_head(arguments):
            arguments["position_embeddings"] = self._no_rotation(arguments["position_embeddings"])
            after = self._layer.traits.norms_after_rope
            if after:
                self._skipped.enter_context(skip_modules(module, after))
        self._own_positions = arguments.get("position_ids")
        if self._layer.traits.scales_by_position:
            self._place(arguments)
        self._arguments = arguments
        return (), arguments

    def _place(self, arguments: dict[str, Any]) -> None:
        """Let the module scale queries by the positions that a handler gives them."""
        hidden: Tensor = arguments["hidden_states"]
        for handler in self._handlers:
            placed = handler.query_positions(*hidden.shape[:2])
            if placed is not None:
                arguments["position_ids"] = placed.to(hidden.device)

    def _tables_by_head(self, arguments: dict[str, Any]) -> bool:
        """Let the model rotate every head by tables of its own, where a handler brings some."""
        if not self._layer.traits.rotates_by_table:
            return False
        for handler in self._handlers:
            tables = handler.tables_by_head(arguments)
            if tables is not None:
                arguments["position_embeddings"] = tables
                self._rotated_by_head = True
        return self._rotated_by_head

    def _no_rotation(self, embeddings: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Tables that rotate by nothing, made once per shape."""
        cos, sin = embeddings
        return self._layer.request.shared(
            ("no rotation", cos.shape, cos.dtype, cos.device),
            lambda: (torch.ones_like(cos), torch.zeros_like(sin)),
        )

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        """Answer the module's attention call: output `[b, n, h, dv]`, no weights."""
        if self._layer.traits.norms_after_rope:
            self._skipped.close()
        if self._rotated_by_head:
            call.query, call.key = own_heads(call.query), own_heads(call.key)
        if "position_ids" in call.options:  # by which backends tell packed prompts
            call.options["position_ids"] = self._own_positions
        request = self._layer.request
        request.attention_calls += 1
        rows, columns = call.query.shape[0], call.query.shape[2]
        request.record_shape(rows, columns, self._layer.start)
        if columns > 1 and request.forward_passes <= 1:
            request.shared(("mask", id(call.mask)), partial(self._check_mask, call.mask))
            if self._has_own_attention and call.query.dtype != call.value.dtype:
                raise UnsupportedGenerationError(
                    "Queries and values have different number formats, as under torch.autocast, "
                    "and this method attends by itself. Load the model in half precision instead "
                    "(dtype=torch.bfloat16), and leave the autocast block."
                )
        context = AttentionContext(
            self._layer,
            call,
            self._tap,
            self._arguments,
            ModelAttention(self._layer.traits, request),
            iter(self._handlers),
        )
        inputs: tuple[Tensor, ...] = ()
        if not self._has_gradients and torch.is_grad_enabled():
            inputs = tuple(x for x in (call.query, call.key, call.value) if x.requires_grad)
        try:
            output, weights = context.proceed()
            output = output.contiguous()  # as backends give it: some modules take views of it
            if inputs:
                output = _WithoutGradients.apply(output, *inputs)  # type: ignore[no-untyped-call]
            return output, weights
        finally:
            self._layer.end_call(columns)
            # Hidden states and caches are not kept alive between calls.
            self._arguments = {}
            self._tap = CacheTap(None)

    def _check_mask(self, mask: Any) -> None:
        """See that tokens of the prompt attend to those before them, as methods take for granted.

        Raises:
            UnsupportedGenerationError: they do not, or the mask cannot be read.
        """
        if mask is not None and not isinstance(mask, Tensor):
            raise UnsupportedGenerationError(
                f"Methods cannot read the masks of this attention implementation "
                f"({type(mask).__name__}). Load the model with attn_implementation='sdpa'."
            )
        start = self._layer.start
        if mask is None or mask.is_meta or mask.ndim != 4 or mask.shape[-1] <= start + 1:
            return
        # Who attends to anything later attends to the next token: pictures and prefixes are whole.
        ahead = mask[:, 0].diagonal(start + 1, -2, -1)
        seen = ahead if mask.dtype == torch.bool else ahead > torch.finfo(mask.dtype).min / 2
        columns = torch.arange(start, start + seen.shape[-1], device=mask.device)
        if (seen & (columns >= self._layer.request.paddings(mask.device)[:, None])).any():
            raise UnsupportedGenerationError(
                "Tokens of this prompt attend to later ones (those of a picture, or of a prefix "
                "that is read both ways), and methods that act on attention take it to be causal. "
                "Leave that out of the prompt, or use method='none' or one that changes rotary "
                "positions only."
            )

    def close(self) -> None:
        """Undo what an interrupted call left on the module."""
        self._skipped.close()
