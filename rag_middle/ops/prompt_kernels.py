"""What Triton kernels that read a batch of prompts in one launch take: columns, angles, tiles.

Triton itself is imported when a kernel is launched, so operators can be defined without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rag_middle.layout import PromptLayout
from rag_middle.ops.kernels import KernelCase
from rag_middle.ops.rope import RotaryStyle
from rag_middle.ops.scores import ScoreRule

#: Programs that keep a large GPU busy: work is split where there are fewer.
_PROGRAMS = 264
_MOST_SPLITS = 32
_KEYS_PER_SPLIT = 128


class Tiles(NamedTuple):
    """Rows and keys of a tile, and how many warps compute it in how many stages."""

    rows: int
    keys: int
    warps: int
    stages: int

    @property
    def arguments(self) -> dict[str, int]:
        """For a launch."""
        rows, keys, warps, stages = self
        return {"BM": rows, "BN": keys, "num_warps": warps, "num_stages": stages}


def tile_sizes(head_size: int, *, later: bool = False, rotates_back: bool = False) -> Tiles:
    """What compiles without spilled registers, for compute capability 8.0 and newer.

    Args:
        head_size: the larger one of keys and values.
        later: tokens after the documents, few of which are read at a time: each has angles of its
            own, which take registers.
        rotates_back: keys are rotated back; of heads wider than 128, some registers spill.
    """
    if head_size > 128:
        return Tiles(16, 16, 4, 1) if rotates_back else Tiles(32 if later else 64, 32, 8, 2)
    return Tiles(32, 64, 4, 2) if later else Tiles(64, 64 if head_size <= 64 else 32, 4, 2)


def splits_for(programs: int) -> int:
    """Into how many parts to split each of so many programs."""
    return -(-_PROGRAMS // programs)


def splits_of_keys(programs: int, columns: int) -> int:
    """Into how many parts to split the keys that each of so many programs reads."""
    return min(splits_for(programs), _MOST_SPLITS, -(-columns // _KEYS_PER_SPLIT))


class RotaryAngles(NamedTuple):
    """Rotary tables by position, and how they are paired.

    Attributes:
        cos: `[N, R]` float32, for positions up to the last token's. Factors of yarn-like variants
            are part of it.
        sin: like `cos`.
        style: pairing of the model.
    """

    cos: Tensor
    sin: Tensor
    style: RotaryStyle


#: Of two rows that kernels are checked with: documents longer than a tile, an empty one, padding.
CHECK_LAYOUTS = (
    PromptLayout(150, ((9, 79), (79, 79), (79, 116), (116, 137))),
    PromptLayout(120, ((0, 45), (45, 111))),
)


def check_angles(
    case: KernelCase, positions: int
) -> tuple[RotaryAngles | None, RotaryAngles | None]:
    """Angles that kernels are checked with, on their device and on the CPU."""
    if case.style is None:
        return None, None
    cos, sin = case.tables(positions)
    there = RotaryAngles(cos.to(case.device), sin.to(case.device), case.style)
    return there, RotaryAngles(cos, sin, case.style)


class PromptColumns:
    """Where prefix, documents and the rest lie in every row of a left-padded batch.

    Args:
        layouts: one per row.
        paddings: columns before each row's prompt.
        device: where the layers compute.

    Attributes:
        rows: `[b, D + 2]` int32: the first column of the prompt, then of each document, then the
            one after the documents. Rows with fewer documents have empty ones at the end.
        first: the first column of any row's documents.
        last: the first column after any row's documents.
        longest: tokens of any row's documents together.
        padded: whether any row is.
    """

    def __init__(
        self, layouts: Sequence[PromptLayout], paddings: Sequence[int], device: torch.device
    ) -> None:
        count = max(len(layout.documents) for layout in layouts)
        rows = []
        for layout, padding in zip(layouts, paddings, strict=True):
            starts = [padding + start for start, _ in layout.documents]
            ends = [padding + layout.suffix_start] * (count + 1 - len(starts))
            rows.append([padding, *starts, *ends])
        self.rows = torch.tensor(rows, dtype=torch.int32, device="cpu").to(device)
        self.first = min(row[1] for row in rows)
        self.last = min(row[-1] for row in rows)
        self.longest = max(layout.document_tokens for layout in layouts)
        self.padded = any(paddings)
        self._numbers = rows
        self._tiles: dict[tuple[int, int | None], Tensor] = {}

    def tiles(self, height: int, stop: int | None = None) -> Tensor:
        """Tiles of at most `height` rows of one part of a prompt, `[_, 3]` int32, made once.

        Row of the batch, document, first column. The prefix is document -1; what is after the
        documents, up to column `stop`, document `D`: it is left out where there is no `stop`.
        """
        if (height, stop) not in self._tiles:
            listed = [
                (row, part - 1, first)
                for row, bounds in enumerate(self._numbers)
                for part, begin in enumerate(bounds)
                for first in range(begin, [*bounds, stop or bounds[-1]][part + 1], height)
            ]
            flat = torch.tensor(listed, dtype=torch.int32, device="cpu").view(-1, 3)
            self._tiles[height, stop] = flat.to(self.rows.device)
        return self._tiles[height, stop]


def angle_arguments(
    angles: RotaryAngles | None,
) -> tuple[Tensor | None, Tensor | None, int, bool]:
    """Cosines, sines, pairs, and whether pairs are interleaved: arguments of an operator."""
    if angles is None:
        return None, None, 0, False
    return angles.cos, angles.sin, angles.style.pairs, angles.style.pairing == "interleaved"


def rule_arguments(rule: ScoreRule) -> tuple[float, float, int]:
    """Scale, soft-cap and window: zero for what does not apply."""
    return rule.scale, rule.softcap or 0.0, rule.window or 0


def head_constants(d: int, rotates: bool, pairs: int, interleaved: bool) -> dict[str, int]:
    """Constants of a kernel: how the `d` dimensions of a head lie in its tiles."""
    from triton import next_power_of_2

    if not rotates:
        pairs = d // 2  # dimensions in two halves all the same
    return {
        "D": d,
        "R": pairs,
        "STEP": 2 if interleaved else 1,
        "SECOND": 1 if interleaved else pairs,
        "R_PAD": max(16, next_power_of_2(pairs)),
        "REST_PAD": max(16, next_power_of_2(d - 2 * pairs)),
    }


def attention_constants(
    q: Tensor, k: Tensor, v: Tensor, rotates: bool, softcap: float, window: int
) -> dict[str, int]:
    """Constants of a kernel that attends, beside those of its heads, of tensors `[b, _, n, _]`."""
    from triton import next_power_of_2

    dv = v.shape[-1]
    return {
        "ROTATES": rotates,
        "SOFTCAP": softcap > 0,
        "WINDOW": window > 0,
        "SHARE": q.shape[1] // k.shape[1],
        "DV": dv,
        "DV_PAD": max(16, next_power_of_2(dv)),
    }


def empty_output(q: Tensor, v: Tensor, padded: bool) -> tuple[Tensor, Tensor]:
    """Output `[b, n, h, dv]` and log-sum-exp `[b, h, n]` float32, both zero in padding.

    Args:
        q: `[b, h, n, d]`.
        v: `[b, g, _, dv]`.
        padded: whether any row is.
    """
    b, h, n, _ = q.shape
    make = q.new_zeros if padded else q.new_empty
    return make(b, n, h, v.shape[-1]), make(b, h, n, dtype=torch.float32)


def rows_in_one_piece(x: Tensor) -> Tensor:
    """`x` with the numbers of a head side by side, as tiles are loaded."""
    return x if x.stride(-1) == 1 else x.contiguous()
