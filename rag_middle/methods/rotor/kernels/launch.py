"""RoToR's Triton kernel as an operator of PyTorch: a batch of prompts in one launch.

`rotor_prefill` is a custom operator with a fake, so fake tensors, compilers and counters see it
without Triton, which is imported at the first launch. Mathematics and shapes are those of
`circle.py`; the kernel is in `triton_circle.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from rag_middle.methods.rotor.kernels.circle import CircleRotations, attend_by_document
from rag_middle.ops.flash import Attended, with_sinks
from rag_middle.ops.kernels import KernelCase, KernelCheck
from rag_middle.ops.prompt_kernels import (
    CHECK_LAYOUTS,
    PromptColumns,
    RotaryAngles,
    angle_arguments,
    attention_constants,
    check_angles,
    empty_output,
    head_constants,
    rows_in_one_piece,
    rule_arguments,
    tile_sizes,
)
from rag_middle.ops.rope import rotate
from rag_middle.ops.scores import ScoreRule


def attend_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    columns: PromptColumns,
    angles: RotaryAngles | None,
    rule: ScoreRule,
) -> Attended:
    """Attention of whole prompts, whose layouts may differ.

    Args:
        q: `[b, h, n, d]`, rotated as in the prompts.
        k: `[b, g, n, d]`, likewise; query head `i` uses head `i // (h/g)`.
        v: `[b, g, n, dv]`.
        columns: of the batch.
        angles: that reach as far as any row's document tokens are many; None for a layer without
            rotary embedding.
        rule: from dot products to scores.

    Returns:
        Output `[b, h, n, dv]`, zero in padding, and the log-sum-exp of the scores.
    """
    height = tile_sizes(max(q.shape[-1], v.shape[-1])).rows
    out, lse = torch.ops.rag_middle.rotor_prefill(
        q, k, v, columns.rows, columns.tiles(height, q.shape[2]), *angle_arguments(angles),
        columns.first, columns.last, columns.padded, *rule_arguments(rule),
    )  # fmt: skip
    return Attended(out.transpose(1, 2), lse)


@torch.library.custom_op("rag_middle::rotor_prefill", mutates_args=())
def _rotor_prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: Tensor,
    tiles: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    pairs: int,
    interleaved: bool,
    first: int,
    last: int,
    padded: bool,
    scale: float,
    softcap: float,
    window: int,
) -> tuple[Tensor, Tensor]:
    from rag_middle.methods.rotor.kernels.triton_circle import attend_circle

    q, k, v = map(rows_in_one_piece, (q, k, v))
    out, lse = empty_output(q, v, padded)
    d, rotates = q.shape[-1], cos is not None
    # A layer without rotary embedding has no tables: any pointer will do.
    tables = (q, q) if cos is None or sin is None else (cos, sin)
    constants: dict[str, Any] = {
        **head_constants(d, rotates, pairs, interleaved),
        **attention_constants(q, k, v, rotates, softcap, window),
        **tile_sizes(max(d, v.shape[-1])).arguments,
    }
    with torch.cuda.device_of(q):
        attend_circle[(tiles.shape[0], q.shape[1])](
            q, k, v, *tables, rows, tiles, out, lse, *q.stride()[:3], *k.stride()[:3],
            *v.stride()[:3], *out.stride()[:3], *lse.stride()[:2],
            rows.shape[1] - 2, q.shape[2], scale, softcap, window, **constants,
        )  # fmt: skip
    return out, lse


@_rotor_prefill.register_fake
def _(q: Tensor, _k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    _, _, _, _, _, _, _, _, padded, *_ = rest
    return empty_output(q, v, padded)


def _pairs(case: KernelCase) -> Iterator[tuple[Tensor, Tensor]]:
    """Of two rows, the second one padded; sinks make the output depend on the log-sum-exp."""
    heads, width = 2 * case.share, CHECK_LAYOUTS[0].length
    q, k, v = case.draw(width, (heads, case.d), (2, case.d), (2, case.dv))
    mine, theirs = check_angles(case, width)
    if theirs is not None:
        q, k = (rotate(x, theirs.cos, theirs.sin, theirs.style) for x in (q, k))
    (q, k, v), exact = case.inputs(q, k, v)
    paddings = [width - layout.length for layout in CHECK_LAYOUTS]
    columns = PromptColumns(CHECK_LAYOUTS, paddings, case.device)
    sinks = torch.full((heads,), 3.0, device="cpu")
    read = attend_triton(q, k, v, columns, mine, case.rule)
    out = with_sinks(read, sinks.to(case.device)).out
    for row, (layout, padding) in enumerate(zip(CHECK_LAYOUTS, paddings, strict=True)):
        q, k, v = (x[row : row + 1, :, padding:] for x in exact)
        rotations = None
        if theirs is not None:
            moves, factor = CircleRotations.moves(layout), theirs.cos[:1]
            cos, sin = theirs.cos[moves] / factor, theirs.sin[moves] / factor
            rotations = CircleRotations.of(cos, sin, layout, theirs.style, q)
        expected = attend_by_document(q, k, v, layout, rotations, case.rule, sinks=sinks)
        yield out[row : row + 1, :, padding:], expected


CHECK = KernelCheck("RoToR", _pairs)
