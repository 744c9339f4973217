"""A small case of what PINE's Triton kernels compute, beside PyTorch's operators."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from rag_middle.methods.pine.kernels.attend import decode, prefill
from rag_middle.methods.pine.kernels.launch import decode_triton, prefill_triton, rotate_triton
from rag_middle.methods.pine.kernels.tables import PineTables, base_rotate
from rag_middle.ops.kernels import KernelCase, KernelCheck
from rag_middle.ops.prompt_kernels import CHECK_LAYOUTS, PromptColumns, check_angles

_END = CHECK_LAYOUTS[0].length
_GENERATED = 2


def _inputs(case: KernelCase) -> tuple[list[Tensor], list[Tensor]]:
    """Queries, keys and values, with documents of clearly different importance.

    Rounding would swap documents of nearly equal importance, and be taken for an error. Keys of a
    document lean to one side by its index, queries by a sign: of a head where they are a document's
    and rank together, else of each token. Every order of documents and its reverse are met.
    """
    heads, total = 2 * case.share, _END + _GENERATED
    q, k, v = case.draw(total, (heads, case.d), (2, case.d), (2, case.dv))
    lean = case.d**-0.25  # the product of two, summed and scaled, is 1
    generator = torch.Generator().manual_seed(1)
    signs = torch.randint(2, (2, heads, total, 1), generator=generator, device="cpu") * 2 - 1
    for row, layout in enumerate(CHECK_LAYOUTS):
        for index, (start, end) in enumerate(layout.documents):
            own = slice(start + _END - layout.length, end + _END - layout.length)
            k[row, :, own] += lean * (index - (len(layout.documents) - 1) / 2)
            signs[row, :, own] = signs[row, :, own][:, :1]
    return case.inputs(q / 2 + lean * signs, k, v)


def _pairs(case: KernelCase) -> Iterator[tuple[Tensor, Tensor]]:
    """Prompts of two rows, the second one padded, and two tokens after them."""
    (q, k, v), exact = _inputs(case)
    mine, theirs = check_angles(case, _END + _GENERATED)
    paddings, rule = [_END - layout.length for layout in CHECK_LAYOUTS], case.rule
    columns = PromptColumns(CHECK_LAYOUTS, paddings, case.device)
    of_prompt = q[:, :, :_END], k[:, :, :_END], v[:, :, :_END]
    out, lse, cache = prefill_triton(*of_prompt, columns, mine, rule)
    outputs, sums = [out], [lse]
    for start in range(_END, _END + _GENERATED):
        query, key = (x[:, :, start : start + 1] for x in (q, k))
        placed, rotated = rotate_triton(query, key, columns, mine, start)
        cache = torch.cat((cache, rotated), dim=2)
        values = v[:, :, : start + 1]
        out, lse = decode_triton(query, placed, cache, values, columns, mine, rule)
        outputs.append(out)
        sums.append(lse)
    out, lse = torch.cat(outputs, dim=1).transpose(1, 2), torch.cat(sums, dim=2)
    for row, (layout, padding) in enumerate(zip(CHECK_LAYOUTS, paddings, strict=True)):
        q, k, v = (x[row : row + 1, :, padding:] for x in exact)
        tables, end = PineTables(layout, theirs, q.device), layout.length
        of_prompt = q[:, :, :end], k[:, :, :end], v[:, :, :end]
        first = prefill(*of_prompt, tables, rule, need_lse=True)
        keys = torch.cat((first.rotated_keys, base_rotate(k[:, :, end:], tables, end)), dim=2)
        last = decode(q[:, :, end:], keys, v, first.state, rule, need_lse=True)
        assert first.lse is not None
        assert last[1] is not None
        yield cache[row : row + 1, :, padding:], keys
        yield out[row : row + 1, :, padding:], torch.cat((first.out, last[0]), dim=2)
        sums_of_row = torch.cat((first.lse, last[1]), dim=2)
        yield lse[row : row + 1, :, padding:, None].exp(), sums_of_row[..., None].exp()


CHECK = KernelCheck("PINE", _pairs)
