"""Attention layers of vLLM whose document tokens attend as a method says.

vLLM's own kernel runs first, on everything. Then the output of tokens up to the end of a prompt's
documents is written anew from the queries, keys and values of the same call, by rag-middle's
kernels. The paged cache is never read for it: such tokens come all at once. Later tokens attend to
everything before them, which is what vLLM's kernel does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rag_middle.errors import PatchIneffectiveError
from rag_middle.methods.document_blocks.kernels import attend_documents, document_bounds
from rag_middle.methods.rotor.kernels.circle import CircleRotations, attend_circle
from rag_middle.ops.flash import with_sinks
from rag_middle.ops.rope import RotaryStyle, rotate
from rag_middle.ops.scores import ScoreRule
from rag_middle_vllm.documents.batch import DocumentBatch, PromptRow
from rag_middle_vllm.documents.methods import DocumentSpans, ServedMethod
from rag_middle_vllm.layers import DecoderLayer, LoadedModel

#: Families whose norms of queries and keys are known to come before the rotation. RoToR rotates
#: queries once more, which a norm in between would change.
_NORMS_BEFORE_ROTATION = ("qwen3", "qwen3_moe", "gemma3", "gemma3_text", "olmoe")


def attend_to_documents(
    loaded: LoadedModel, methods: Mapping[str, ServedMethod], batch: DocumentBatch
) -> None:
    """Let all attention layers of a model read documents as the methods say.

    Args:
        loaded: the model, changed in place.
        methods: that requests may name.
        batch: which says where documents are read.

    Raises:
        UnsupportedArchitectureError: a layer attends in a way that the methods do not have.
        PatchIneffectiveError: a rotary module does not rotate as its table says.
    """
    for layer in loaded.layers.values():
        _check(loaded, layer, methods.values())
        (attention,) = layer.attentions
        (rotary,) = layer.rotary or (None,)
        if rotary is not None and any(method.in_circle for method in methods.values()):
            _prove_table(rotary)
        impl: Any = attention.impl
        impl.forward = _reading_documents(
            impl.forward, _RewrittenAttention(attention, rotary), batch
        )


def _reading_documents(
    forward: Callable[..., Any], documents: _RewrittenAttention, batch: DocumentBatch
) -> Callable[..., Any]:
    def attend(
        layer: Any, query: Tensor, key: Tensor, value: Tensor, kv_cache: Any, attn_metadata: Any,
        output: Tensor, *args: Any, **kwargs: Any,
    ) -> Any:  # fmt: skip
        result = forward(layer, query, key, value, kv_cache, attn_metadata, output, *args, **kwargs)
        if attn_metadata is not None:
            for row in batch.rows:
                documents.rewrite(row, query, key, value, output)
        return result

    return attend


class _RewrittenAttention:
    """One layer's attention of document tokens.

    Args:
        attention: vLLM's module.
        rotary: that rotates its queries and keys; None in a layer without positions.
    """

    def __init__(self, attention: Any, rotary: nn.Module | None) -> None:
        impl = attention.impl
        window = attention.sliding_window
        self._rule = ScoreRule(
            scale=impl.scale,
            softcap=getattr(impl, "logits_soft_cap", None) or None,
            window=window if window is not None and window > 0 else None,
        )
        self._impl = impl
        self._rotary = rotary

    def rewrite(
        self, row: PromptRow, query: Tensor, key: Tensor, value: Tensor, output: Tensor
    ) -> None:
        """Write the output of the tokens up to the end of a prompt's documents.

        Args:
            row: the prompt.
            query: `[n, h, d]` of the whole step, rotated.
            key: `[n, g, d]`, likewise.
            value: `[n, g, dv]`.
            output: `[n, h, dv]`, or with the last two axes as one; changed in place.
        """
        span = slice(row.start, row.start + row.spans.layout.length)
        q, k, v = (x[span].transpose(0, 1)[None] for x in (query, key, value))
        read = self._in_circle if row.spans.method.in_circle else self._apart
        rows = output[span]
        rows.copy_(read(q, k, v, row.spans)[0].transpose(0, 1).reshape(rows.shape))

    def _apart(self, q: Tensor, k: Tensor, v: Tensor, spans: DocumentSpans) -> Tensor:
        return attend_documents(
            q,
            k,
            v,
            spans.layout,
            self._rule,
            spans.positions,
            sinks=self._sinks(),
            bounds=document_bounds(spans.layout, q.device),
        )

    def _in_circle(self, q: Tensor, k: Tensor, v: Tensor, spans: DocumentSpans) -> Tensor:
        rotations = None if self._rotary is None else _rotations(self._rotary, spans, q)
        read = attend_circle(q, k, v, spans.layout, rotations, scale=self._rule.scale)
        return with_sinks(read, self._sinks()).out

    def _sinks(self) -> Tensor | None:
        sinks: Tensor | None = getattr(self._impl, "sinks", None)
        return sinks


@dataclass(frozen=True, slots=True)
class _Table:
    """A rotary module's table, without the factor that scalings such as yarn multiply into it."""

    cos: Tensor
    sin: Tensor
    style: RotaryStyle

    @classmethod
    def of_module(cls, rotary: Any, positions: Tensor) -> _Table:
        """The rows of these positions, `[k, r]` each."""
        table: Tensor = rotary.cos_sin_cache
        cos, sin = table[positions.to(table.device)].float().chunk(2, dim=-1)
        factor = table[0].float().chunk(2, dim=-1)[0]
        style = RotaryStyle(
            pairing="half" if rotary.is_neox_style else "interleaved", pairs=cos.shape[-1]
        )
        return cls(cos / factor, sin / factor, style)


def _rotations(rotary: nn.Module, spans: DocumentSpans, query: Tensor) -> CircleRotations:
    """Rotations of document queries, in the dtype and on the device of a query."""
    table = _Table.of_module(rotary, torch.tensor(CircleRotations.moves(spans.layout)))
    return CircleRotations.of(table.cos, table.sin, spans.layout, table.style, query)


def _prove_table(rotary: Any) -> None:
    """Make sure that the module rotates as its table says.

    Raises:
        PatchIneffectiveError: it does not.
    """
    device, dtype = rotary.cos_sin_cache.device, rotary.dtype
    positions = torch.tensor([0, len(rotary.cos_sin_cache) - 1], device=device)
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(2, rotary.head_size, generator=generator).to(device, dtype)
    by_module, _ = rotary(positions, states.clone(), states.clone())
    table = _Table.of_module(rotary, positions)
    factor = rotary.cos_sin_cache[0].float().chunk(2, dim=-1)[0]
    by_table = rotate(states.float(), table.cos * factor, table.sin * factor, table.style)
    # Half precision rounds the module's own result.
    if not torch.allclose(
        by_module.float(), by_table, atol=1e-5 if dtype == torch.float32 else 3e-2
    ):
        raise PatchIneffectiveError(
            f"{type(rotary).__name__} does not rotate as its table says, so rotor cannot move "
            "queries with it. Enable the other methods only."
        )


def _check(loaded: LoadedModel, layer: DecoderLayer, methods: Collection[ServedMethod]) -> None:
    """Refuse a layer that attends in a way that a method does not have."""
    where = f"layer {layer.index}"
    if len(layer.attentions) != 1 or len(layer.rotary) > 1:
        raise loaded.refused(
            f"{where} has {len(layer.attentions)} attentions and {len(layer.rotary)} rotary "
            "modules, and documents are read in layers of softmax attention with one of each."
        )
    (attention,) = layer.attentions
    impl: Any = attention.impl
    if getattr(attention, "kv_sharing_target_layer_name", None) is not None:
        raise loaded.refused(f"{where} attends to the keys of another layer.")
    if getattr(impl, "alibi_slopes", None) is not None:
        raise loaded.refused(f"{where} has ALiBi positions, which documents are not read with.")
    if any(getattr(rotary, "mrope_section", None) is not None for rotary in layer.rotary):
        raise loaded.refused(f"{where} has positions in sections (M-RoPE).")
    moving = [m.method.name for m in methods if m.in_circle or m.placement != "kept"]
    if moving and (getattr(attention, "sliding_window", None) or -1) > 0:
        raise loaded.refused(
            f"{where} has a sliding window, which {' and '.join(moving)} would need at positions "
            "that vLLM's kernel does not know (no_inter_document_attention is served)."
        )
    turning = " and ".join(method.method.name for method in methods if method.in_circle)
    if turning and getattr(impl, "logits_soft_cap", None):
        raise loaded.refused(f"{where} caps its scores, and {turning} is not served with that.")
    norms = _norms_beside(loaded, attention)
    if turning and norms and loaded.text_config.model_type not in _NORMS_BEFORE_ROTATION:
        raise loaded.refused(
            f"{where} has {', '.join(norms)}, and it is not known whether it normalises rotated "
            f"queries, which {turning} rotates once more."
        )


def _norms_beside(loaded: LoadedModel, attention: nn.Module) -> list[str]:
    """Names of the norms in the module that an attention is part of."""
    name = next(name for name, module in loaded.model.named_modules() if module is attention)
    siblings = loaded.model.get_submodule(name.rpartition(".")[0])._modules
    return [sibling for sibling in siblings if "norm" in sibling]
