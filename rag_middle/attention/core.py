"""One attention core for every plan: what a layer does with its queries, keys and values."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from rag_middle.attention.capture import skip_modules
from rag_middle.attention.channels import ChannelScaler, Projected
from rag_middle.attention.circle import CircleAttention
from rag_middle.attention.document_blocks import BlockAttention, position_ids
from rag_middle.attention.experts import ExpertAttention
from rag_middle.attention.head_positions import HeadRotation
from rag_middle.attention.initial_token import attend_and_reweight
from rag_middle.attention.masks import last_rows_mask
from rag_middle.attention.pine import PineAttention
from rag_middle.attention.plan import (
    DocumentBlocks,
    DocumentCircle,
    DocumentOrder,
    GroupedPositions,
    HeadPositionScale,
    LayerPlan,
    PositionScale,
    RotaryBases,
    RotaryExperts,
)
from rag_middle.attention.request import Request
from rag_middle.attention.rotary import RotaryCall
from rag_middle.attention.seam import (
    AttentionCall,
    CacheTap,
    base_attention,
    begins_prompt,
    cache_argument,
    keyword_arguments,
)
from rag_middle.attention.self_extend import GroupedAttention
from rag_middle.attention.traits import LayerTraits
from rag_middle.ops.rope import WideTables

__all__ = ["LayerCore"]


class LayerCore:
    """Carries out one layer's plan during one request.

    `before` sees the module's arguments, `attend` its attention call. Between the two, the
    module's own forward has projected (and, unless deferred, rotated) queries and keys.
    """

    def __init__(
        self, module: nn.Module, traits: LayerTraits, plan: LayerPlan, request: Request
    ) -> None:
        self._module = module
        self._traits = traits
        self._plan = plan
        self._request = request
        self._cache_name = cache_argument(module)
        #: Prompt and generated columns this layer has cached.
        self._cached_columns = request.prefilled
        self._arguments: dict[str, Any] = {}
        self._tap = CacheTap(None)
        self._skipped = ExitStack()
        self._channels = (
            ChannelScaler(module, traits, plan.hidden) if plan.hidden is not None else None
        )
        self._heads = (
            HeadRotation(traits, plan.positions)
            if isinstance(plan.positions, HeadPositionScale)
            else None
        )
        self._experts = (
            ExpertAttention(traits, plan.positions)
            if isinstance(plan.positions, RotaryExperts)
            else None
        )
        self._grouped = (
            GroupedAttention(traits, plan.positions)
            if isinstance(plan.positions, GroupedPositions)
            else None
        )
        self._documents = (
            PineAttention(traits) if isinstance(plan.documents, DocumentOrder) else None
        )
        self._circle = (
            CircleAttention(traits, plan.documents)
            if isinstance(plan.documents, DocumentCircle)
            else None
        )
        self._blocks = (
            BlockAttention(traits, plan.documents)
            if isinstance(plan.documents, DocumentBlocks)
            else None
        )
        #: Rotation is left to us where it depends on the head or on the document.
        self._defers_rotation = traits.uses_rope and (
            self._heads is not None
            or self._documents is not None
            or self._experts is not None
            or self._grouped is not None
        )

    @property
    def needs_attention_call(self) -> bool:
        """False where other rotary tables are all the plan asks for: any backend runs unchanged."""
        plan = self._plan
        return bool(
            plan.hidden
            or plan.weights
            or plan.documents
            or self._heads
            or self._experts
            or self._grouped
        )

    # -- before the module runs ---------------------------------------------------------------

    def before(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Forward pre-hook: the arguments the module shall run with."""
        arguments = keyword_arguments(module, args, kwargs)
        if isinstance(self._plan.positions, PositionScale) and self._traits.uses_rope:
            scaled = self._rotary().scaled(self._plan.positions.scale)
            arguments["position_embeddings"] = _on_device_of(arguments["hidden_states"], scaled)
        if isinstance(self._plan.positions, RotaryBases) and self._traits.uses_rope:
            hidden = arguments["hidden_states"]
            repeats = hidden.shape[0] // len(self._plan.positions.factors)
            factors = tuple(f for f in self._plan.positions.factors for _ in range(repeats))
            tables = self._rotary().rebased_rows(factors)
            arguments["position_embeddings"] = _on_device_of(hidden, tables)
        if not self.needs_attention_call:
            self._request.attention_calls += 1
            return (), arguments
        cache = arguments.get(self._cache_name) if self._cache_name else None
        columns = arguments["hidden_states"].shape[1]
        if begins_prompt(cache, self._traits.layer, columns, self._request.width):
            self._cached_columns = 0
        self._tap = CacheTap(cache)
        if self._cache_name is not None and cache is not None:
            arguments[self._cache_name] = self._tap
        if self._blocks is not None and self._blocks.moves_tokens and self._traits.uses_rope:
            tables = self._tables_of_blocks(columns, arguments["hidden_states"].shape[0])
            arguments["position_embeddings"] = _on_device_of(arguments["hidden_states"], tables)
        if self._defers_rotation:
            arguments["position_embeddings"] = self._no_rotation(arguments["position_embeddings"])
            if self._traits.norms_after_rope:
                self._skipped.enter_context(skip_modules(module, self._traits.norms_after_rope))
        self._arguments = arguments
        return (), arguments

    def _tables_of_blocks(self, columns: int, rows: int) -> Any:
        """The model's rotary tables where documents stand elsewhere, made once per pass."""
        plan, start = self._plan.documents, self._cached_columns
        assert isinstance(plan, DocumentBlocks)
        self._request.see(rows, columns, start)
        return self._rotary().named(plan, lambda: position_ids(plan, self._request, start, columns))

    def _no_rotation(self, embeddings: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Tables that rotate by nothing, made once per shape."""
        cos, sin = embeddings
        return self._request.shared(
            ("no rotation", cos.shape, cos.dtype, cos.device),
            lambda: (torch.ones_like(cos), torch.zeros_like(sin)),
        )

    def _rotary(self) -> RotaryCall:
        call = self._request.tables.of(self._traits.layer_type)
        if call is None:
            raise RuntimeError(
                f"layer {self._traits.layer} was given rotary tables by no rotary module"
            )
        return call

    # -- in the module's attention call -------------------------------------------------------

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        """Answer the module's attention call: output `[b, n, h, dv]`, no weights."""
        self._skipped.close()
        request = self._request
        request.attention_calls += 1
        start = self._cached_columns
        request.see(call.query.shape[0], call.query.shape[2], start)
        try:
            if self._documents is not None:
                return self._documents.attend(
                    call, self._tap, self._rotary_or_none(), request, start
                )
            if self._circle is not None:
                return self._circle.attend(call, self._tap, self._rotary_or_none(), request, start)
            if self._experts is not None:
                return self._experts.attend(
                    call, self._tap, self._rotary(), self._normalised, request, start
                )
            if self._blocks is not None:
                return self._blocks.attend(call, self._tap, self._rotary_or_none(), request, start)
            if self._grouped is not None:
                return self._grouped.attend(
                    call,
                    self._tap,
                    self._rotary(),
                    self._normalised,
                    self._plan.weights,
                    request,
                    start,
                )
            if self._heads is not None:
                self._heads.rotate(call, self._rotary(), request, start)
                call.query, call.key = self._normalised(call.query, call.key)
            if self._channels is not None:
                return self._attend_scaled(call, start)
            call.key, call.value = self._tap.store(call.key, call.value)
            return self._attend_plain(call, start)
        finally:
            self._cached_columns = start + call.query.shape[2]
            # Hidden states and caches are not kept alive between calls.
            self._arguments = {}
            self._tap = CacheTap(None)

    def close(self) -> None:
        """Undo what an interrupted call left on the module."""
        self._skipped.close()

    def _rotary_or_none(self) -> RotaryCall | None:
        return self._rotary() if self._traits.uses_rope else None

    def _normalised(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated queries and keys as the model's norms behind the rotation make them."""
        names = self._traits.norms_after_rope
        if not names:
            return query, key
        query_norm, key_norm = (self._module.get_submodule(name) for name in names)
        return query_norm(query), key_norm(key)

    def _attend_plain(self, call: AttentionCall, start: int) -> tuple[Tensor, Tensor | None]:
        if self._plan.weights is None or start >= self._request.width:
            # Generated tokens belong to no document: nothing to reweight.
            return base_attention(call)
        return attend_and_reweight(call, self._plan.weights, self._traits, self._request)

    def _attend_scaled(self, call: AttentionCall, start: int) -> tuple[Tensor, Tensor | None]:
        """Attention with scaled channels: cache, last prompt rows and generated rows."""
        assert self._channels is not None
        scaling = self._channels.scaling
        columns = call.query.shape[2]
        stop, width = start + columns, self._request.width
        if start >= width and not scaling.scale_generated:
            call.key, call.value = self._tap.store(call.key, call.value)
            return base_attention(call)
        rows = columns
        if scaling.last_tokens is not None:
            rows = min(columns, stop - max(start, width - scaling.last_tokens))
        keep = self._unscaled_tokens(start, stop, call.query.device)
        plain = Projected(call.query, call.key, call.value)
        scaled = self._channels.apply(self._arguments, plain, rows, keep, self._wide_tables())
        stored_key, stored_value = self._tap.store(scaled.key, scaled.value)
        mask = last_rows_mask(call, rows, stored_key.shape[2])
        tail = AttentionCall(
            call.module, scaled.query, stored_key, stored_value, mask, call.options
        )
        tail_output, _ = base_attention(tail)
        if rows == columns:
            return tail_output, None
        # The other prompt rows attend to what the model itself would have cached.
        call.key = _in_place_of(call.key, stored_key)
        call.value = _in_place_of(call.value, stored_value)
        output, _ = self._attend_plain(call, start)
        return torch.cat((output[:, : columns - rows], tail_output), dim=1), None

    def _wide_tables(self) -> WideTables | None:
        """Tables of the layer's own rotation, on the plan's scale, where columns need them."""
        assert self._channels is not None
        rotary = self._traits.rotary
        if not self._traits.uses_rope or rotary is None or not self._channels.ranks_one:
            return None
        positions = self._plan.positions
        scale = positions.scale if isinstance(positions, PositionScale) else 1.0
        device = self._arguments["hidden_states"].device
        tables = self._rotary().wide((scale,), self._traits.table_format, rotary)
        return WideTables(*(table[0].to(device) for table in tables))

    def _unscaled_tokens(self, start: int, stop: int, device: torch.device) -> Tensor | None:
        """Tokens of this call that keep their keys, boolean `[b, n]`."""
        assert self._channels is not None
        scaling = self._channels.scaling
        if not scaling.skip_first and scaling.scale_generated:
            return None
        columns = torch.arange(start, stop, device=device)
        first = self._request.paddings(device)[:, None] + scaling.skip_first
        keep = columns[None, :] < first
        if not scaling.scale_generated:
            keep = keep | (columns[None, :] >= self._request.width)
        return keep


def _on_device_of(like: Tensor, tables: Any) -> Any:
    """Rotary tables where the layer computes: models may be spread over several devices."""
    if isinstance(tables, Tensor):
        return tables.to(like.device)
    return tuple(table.to(like.device) for table in tables)


def _in_place_of(plain: Tensor, stored: Tensor) -> Tensor:
    """`plain` in the shape of what a cache stored: static caches are longer than the prompt."""
    if stored.shape[2] == plain.shape[2]:
        return plain
    whole = stored.clone()
    whole[:, :, : plain.shape[2]] = plain
    return whole
