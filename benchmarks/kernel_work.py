"""What one call of an operator of this package asks of a GPU, by the shapes of its tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from rag_middle.ops.prompt_kernels import tile_sizes


class KernelWork(NamedTuple):
    """What one call asks of a GPU.

    Attributes:
        flops: multiplications and additions of its matrix products.
        bytes: read and written.
        launches: kernels.
    """

    flops: int
    bytes: int
    launches: int


def _bytes_of(*tensors: Tensor) -> int:
    """Of all of them together."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _pine_prefill(outputs: Sequence[Tensor], *arguments: Any) -> KernelWork:
    """Documents are taken to be of one length: tensors of a count hold no numbers."""
    q, k, v, rows, _, cos, _, _, _, first, last, *_, window = arguments
    b, h, n, d = q.shape
    count, dv = rows.shape[1] - 2, v.shape[-1]
    texts, later = last - first, n - last
    ranks = count > 0 and (cos is not None or window > 0)
    # Tiles end with their document: what they compute beyond it is part of the work.
    tiles, length = tile_sizes(max(d, dv)), texts // max(1, count)
    rows_read = count * (-(-length // tiles.rows) * tiles.rows)
    keys_read = count * (-(-length // tiles.keys) * tiles.keys)
    own = rows_read * keys_read // max(1, 2 * count)
    pairs = first * first // 2 + rows_read * (first + keys_read) - own
    pairs += later * (first + keys_read) + later * later // 2
    ranked = (texts + later) * keys_read if ranks else 0
    # Keys and queries are read un-rotated and rotated; log-sum-exps and shifts written and read.
    moved = 2 * _bytes_of(q, k) + _bytes_of(v, *outputs)
    moved += 2 * 4 * b * h * count * (texts + 2 * later + count if ranks else 0)
    moved += 2 * 4 * b * h * later * dv
    launches = (cos is not None) + 2 * ranks + 1 + 2 * (later > 0)
    return KernelWork(2 * b * h * (pairs * (d + dv) + ranked * d), moved, launches)


def _pine_decode(outputs: Sequence[Tensor], *arguments: Any) -> KernelWork:
    q, placed, keys, values, rows, cos, *_, window = arguments
    b, h, m, d = q.shape
    count, n = rows.shape[1] - 2, keys.shape[2]
    ranks = count > 0 and (cos is not None or window > 0)
    moved = _bytes_of(q, placed, keys, values, *outputs) + (_bytes_of(keys) if ranks else 0)
    launches = 2 * ranks + 2
    pairs = 2 * b * h * m * n
    return KernelWork(pairs * (d + values.shape[-1] + d * ranks), moved, launches)


def _pine_rotate(outputs: Sequence[Tensor], q: Tensor, k: Tensor, *_: Any) -> KernelWork:
    return KernelWork(0, _bytes_of(q, k, *outputs), 1)


def _rotor_prefill(outputs: Sequence[Tensor], *arguments: Any) -> KernelWork:
    """Documents are taken to be of one length: tensors of a count hold no numbers."""
    q, k, v, rows, _, _, _, _, _, first, last, *_, window = arguments
    b, h, n, d = q.shape
    count, dv = max(1, rows.shape[1] - 2), v.shape[-1]
    texts = last - first
    tiles, length = tile_sizes(max(d, dv)), texts // count
    # Tiles end with their document: what they compute beyond it is part of the work.
    rows_read = count * -(-length // tiles.rows) * tiles.rows
    own = rows_read * length // 2
    pairs = first * first // 2 + rows_read * (first + texts) - own
    pairs += (n * n - last * last) // 2
    if window:
        pairs = min(pairs, (first + rows_read + n - last) * window)
    return KernelWork(2 * b * h * pairs * (d + dv), _bytes_of(q, k, v, *outputs), 1)


def _rotate_heads(outputs: Sequence[Tensor], *arguments: Tensor) -> KernelWork:
    q, k, cos, sin, choice, *_ = arguments
    # Of tables, one number of every pair is read, once: heads that share them run together.
    moved = _bytes_of(q, k, choice, *outputs) + _bytes_of(cos, sin) // 2
    return KernelWork(0, moved, 1)


def _attend_spans(
    outputs: Sequence[Tensor], q: Tensor, far: Tensor, k: Tensor, v: Tensor, *__: Tensor
) -> KernelWork:
    (b, h, _, d), (n, dv) = q.shape, v.shape[-2:]
    # Every column is read in one of its rotations.
    moved = _bytes_of(q, far, v, *outputs) + _bytes_of(k) * d // k.shape[-1]
    return KernelWork(2 * b * h * n * (d + dv), moved, 2)


#: By the operator's name: its work, from what it returned and the arguments of a call. They may be
#: tensors without numbers.
KERNEL_WORK: dict[str, Callable[..., KernelWork]] = {
    f"rag_middle::{work.__name__[1:]}": work
    for work in (
        _pine_prefill,
        _pine_rotate,
        _pine_decode,
        _rotor_prefill,
        _rotate_heads,
        _attend_spans,
    )
}
