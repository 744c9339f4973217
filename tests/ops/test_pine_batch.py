"""Generated tokens of several prompts together against each prompt alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from rag_middle.layout import PromptLayout
from rag_middle.methods.pine.kernels import batch as batched
from rag_middle.methods.pine.kernels.attend import PineTables, base_rotate, decode, prefill
from rag_middle.methods.pine.kernels.batch import (
    BatchColumns,
    decode_batch,
    rotate_generated,
    worth_batching,
)
from rag_middle.ops.rope import RotaryStyle
from tests.ops.test_pine import Case

#: Rows that differ in everything a layout may differ in.
ROWS = (
    Case((4, 3, 6)),
    Case((6, 2), prefix=5, suffix=2),
    Case((0, 5, 0, 1), prefix=0),
    Case((3, 4, 6), suffix=1),
    Case((), prefix=9, suffix=0),
    Case((7,), prefix=1),
)
CHANGES = {
    "rotated halves": {},
    "interleaved pairs": {"pairing": "interleaved", "pairs": 3},
    "one key head": {"groups": 1},
    "yarn-like factor": {"factor": 1.3},
    "soft-capped": {"softcap": 1.5},
    "windowed": {"window": 7},
    "no rotary embedding": {"pairs": 0},
    "no rotary embedding, window": {"pairs": 0, "window": 6},
}


def alone(case: Case, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
    """Output and log-sum-exp of all generated tokens at once, and the keys as cached."""
    tables, end = case.tables(), case.layout.length
    state = prefill(q[:, :, :end], k[:, :, :end], v[:, :, :end], tables, case.rule).state
    keys = base_rotate(k, tables)
    out, lse = decode(q[:, :, end:], keys, v, state, case.rule, need_lse=True)
    return out, lse, keys


@pytest.mark.parametrize("at_once", [2**19, 1], ids=["together", "one query at a time"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_row_of_a_batch_equals_the_prompt_alone(
    change: dict[str, object], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batched, "scores_at_once", lambda device: at_once)
    cases = [replace(case, generated=3, **change) for case in ROWS]  # type: ignore[arg-type]
    longest = max(cases, key=lambda case: case.total)
    paddings = [longest.total - case.total for case in cases]
    rule, width = longest.rule, longest.layout.length
    inputs = [case.qkv(seed) for seed, case in enumerate(cases)]
    expected = [alone(case, *qkv) for case, qkv in zip(cases, inputs, strict=True)]

    def batch(tensors: list[Tensor]) -> Tensor:
        # What stands in padding must not matter.
        rows = zip(tensors, paddings, strict=True)
        return torch.cat([pad(each, (0, 0, padding, 0), value=3.0) for each, padding in rows])

    q, k, v = (batch([qkv[which] for qkv in inputs]) for which in range(3))
    columns = BatchColumns([case.layout for case in cases], paddings, torch.device("cpu"))
    style = RotaryStyle(longest.pairing, longest.pairs) if longest.pairs else None
    tables = PineTables(PromptLayout(width), *longest.table(), style, torch.device("cpu"))
    new = rotate_generated(k[:, :, width:], tables, columns.generated_positions(width, k.shape[2]))
    cached = batch([keys for _, _, keys in expected])
    assert torch.allclose(new, cached[:, :, width:], atol=1e-6)

    out, lse = decode_batch(
        q[:, :, width:],
        cached,
        v,
        columns.documents_of(k[:, :, :width]),
        tables,
        columns,
        rule,
        need_lse=True,
    )
    assert lse is not None
    for row, (row_out, row_lse, _) in enumerate(expected):
        assert row_lse is not None
        # float32 sums in another order: a few units in the last place of values around 1.
        assert torch.allclose(out[row], row_out[0], atol=2e-6)
        assert torch.allclose(lse[row], row_lse[0], atol=2e-6)


def test_a_batch_is_worth_it_while_its_scores_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched, "scores_at_once", lambda device: 2 * 4 * (3 + 1) * 17)
    layouts = [ROWS[0].layout, ROWS[1].layout]
    device = torch.device("cpu")
    assert worth_batching(layouts, heads=4, width=17, device=device)
    assert not worth_batching(layouts, heads=4, width=18, device=device)
