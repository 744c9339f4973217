"""PINE's attention in a transformers layer: rows, paddings and caches around its kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from rag_middle.attention import AttentionContext, Layer, in_rows, join_rows
from rag_middle.layout import PromptLayout
from rag_middle.methods.document_blocks.attention import DocumentsLast
from rag_middle.methods.pine.kernels.attend import PineState, decode, prefill
from rag_middle.methods.pine.kernels.check import CHECK
from rag_middle.methods.pine.kernels.importance import Ranking
from rag_middle.methods.pine.kernels.launch import decode_triton, prefill_triton, rotate_triton
from rag_middle.methods.pine.kernels.tables import PineTables, base_rotate
from rag_middle.ops.kernels import uses_triton
from rag_middle.ops.scores import ScoreRule


class PineAttention(DocumentsLast):
    """Position-invariant attention of one layer during one request.

    Triton kernels take all prompts of a batch at once, PyTorch's operators one after the other:
    most of their work is scores and softmax, which are not cheaper for several prompts at a time.

    The cache holds keys rotated at base positions. What ranks the documents at every generated
    token are un-rotated document keys: the kernels rotate the cached ones back, PyTorch's operators
    keep a copy here.

    Sliding-window layers: the window is applied to the distances that the ranking assigns, so a
    query sees the documents it finds most important, up to the window.
    """

    def __init__(self, layer: Layer, ranking: Ranking) -> None:
        super().__init__(layer)
        self._ranking = ranking
        #: Of each group.
        self._states: list[PineState] = []
        #: Whether Triton kernels read the prompt.
        self._triton = False

    def attend(self, context: AttentionContext) -> tuple[Tensor, Tensor | None]:
        """Output `[b, n, h, dv]`: queries and keys come un-rotated."""
        rule = self._layer.score_rule(context.stop)
        if context.start == 0:
            request, call = self._layer.request, context.call
            self._triton = self._ranking == "importance" and uses_triton(
                request.kernels,
                call.query,
                call.key,
                call.value,
                CHECK,
                style=None if self._layer.rotary is None else self._traits.rotary,
                rule=rule,
            )
        if self._triton:
            return self._by_triton(context, rule), None
        read = self._decode if context.start else self._prefill
        return read(context, rule).transpose(1, 2), None

    def _by_triton(self, context: AttentionContext, rule: ScoreRule) -> Tensor:
        call, request = context.call, self._layer.request
        start, stop = context.start, context.stop
        request.kernels_used = "triton"
        columns = self.prompt_columns(call.query.device)
        angles = self._layer.angles(stop)
        if start == 0:
            out, lse, keys = prefill_triton(call.query, call.key, call.value, columns, angles, rule)
            context.store_prompt(keys)
        else:
            placed, rotated = rotate_triton(call.query, call.key, columns, angles, start)
            keys, values = context.store_generated(rotated)
            out, lse = decode_triton(call.query, placed, keys, values, columns, angles, rule)
        sinks: Tensor | None = call.options.get("s_aux")
        return _with_sinks(out.transpose(1, 2), lse, sinks).transpose(1, 2)

    def _prefill(self, context: AttentionContext, rule: ScoreRule) -> Tensor:
        call, request = context.call, self._layer.request
        n = call.query.shape[2]
        sinks: Tensor | None = call.options.get("s_aux")
        outputs, keys = [], []
        self._states.clear()
        for group in request.groups:
            # Without a cache, generated tokens come again with the prompt: part of the suffix.
            length = group.layout.length + n - request.width
            layout = PromptLayout(length, group.layout.documents)
            filled = prefill(
                group.take(call.query)[:, :, group.padding :],
                group.take(call.key)[:, :, group.padding :],
                group.take(call.value)[:, :, group.padding :],
                self._tables(layout, call.query.device),
                rule,
                need_lse=sinks is not None,
            )
            self._states.append(filled.state)
            outputs.append(_with_sinks(filled.out, filled.lse, sinks))
            keys.append(filled.rotated_keys)
        context.store_prompt(join_rows(request.groups, keys))
        return join_rows(request.groups, outputs)

    def _decode(self, context: AttentionContext, rule: ScoreRule) -> Tensor:
        call, request = context.call, self._layer.request
        start, stop = context.start, context.stop
        sinks: Tensor | None = call.options.get("s_aux")
        rotated = []
        for index, group in enumerate(request.groups):
            state = self._states[index]
            state = state._replace(document_keys=in_rows(state.document_keys, len(group.rows)))
            tables = state.tables
            if tables.rotates and stop - group.padding > len(tables.base_cos):
                state = state._replace(tables=self._tables(group.layout, call.query.device, stop))
            self._states[index] = state
            rotated.append(base_rotate(group.take(call.key), state.tables, start - group.padding))
        keys, values = context.store_generated(join_rows(request.groups, rotated, padded=False))
        outputs = []
        for group, state in zip(request.groups, self._states, strict=True):
            out, lse = decode(
                group.take(call.query),
                group.take(keys)[:, :, group.padding :],
                group.take(values)[:, :, group.padding :],
                state,
                rule,
                need_lse=sinks is not None,
            )
            outputs.append(_with_sinks(out, lse, sinks))
        return join_rows(request.groups, outputs, padded=False)

    def _tables(self, layout: PromptLayout, device: torch.device, positions: int = 0) -> PineTables:
        """Tables of a prompt, made once per request for all layers with the same frequencies."""
        angles = self._layer.angles(max(layout.length + 1, positions))
        return self._layer.request.shared(
            ("pine", self._ranking, layout, id(angles), device),
            lambda: PineTables(layout, angles, device, self._ranking),
        )


def _with_sinks(out: Tensor, lse: Tensor | None, sinks: Tensor | None) -> Tensor:
    """Make room in the softmax for a learned extra score per head: `out` is `[r, h, n, dv]`."""
    if sinks is None or lse is None:
        return out
    return out * torch.sigmoid(lse - sinks.float()[None, :, None])[..., None].to(out.dtype)
