"""Where PINE (arXiv:2407.01100, section 3) puts tokens, before documents are ranked.

The prefix keeps its positions. Every document ends at `P + T`, so that it is the last one where it
is the query itself; as a key it moves back by the length of the documents ranked nearer
(`document_shifts` in `importance.py`). Suffix and generated tokens keep their positions.

Rotations compose, `R(p)R(s) = R(p + s)`, so keys are rotated once at these base positions, which is
what a cache should hold, and a shift is one more rotation by an angle shared by the whole document.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rag_middle.methods.document_blocks.kernels import token_positions
from rag_middle.methods.pine.kernels.importance import Ranking, document_means
from rag_middle.ops.prompt_kernels import RotaryAngles
from rag_middle.ops.rope import RotaryStyle, rotate
from rag_middle.ops.scores import document_tokens, spans_of

if TYPE_CHECKING:
    from rag_middle.layout import PromptLayout


class PineTables:
    """What all layers with the same rotary embedding share about one prompt.

    Args:
        layout: prefix, documents, suffix. No documents: plain causal attention.
        angles: of at least as many positions as the prompt and the generated tokens have together.
            None for a layer without rotary embedding: only visibility changes there.
        device: where the layer computes; that of the angles by default.
        ranking: see `document_shifts`.

    Attributes:
        spans: of the documents, counted from the first document token.
        lengths: `[D]` tokens of each document.
        means: `[T, D]`, see `document_means`.
        document_of: `[T]` index of the document a token belongs to.
        base_positions: `[l]` of the prompt's tokens.
        rotates: False for a layer without rotary embedding; it has no tables then.
        base_cos, base_sin: `[N, R]` for the token at an index, at its base position.
        shift_cos, shift_sin: `[N, R]` for a shift by a number of positions.
        base_rotation, shift_back: `[N, 2R]`, real and imaginary parts alternating: the rotation to
            the base position of the token at an index, and the one back by a shift.
    """

    def __init__(
        self,
        layout: PromptLayout,
        angles: RotaryAngles | None = None,
        device: torch.device | None = None,
        ranking: Ranking = "importance",
    ) -> None:
        self.ranking = ranking
        if device is None and angles is not None:
            device = angles.cos.device
        self.layout = layout
        self.spans = spans_of(layout.document_lengths)
        self.lengths, self.document_of = document_tokens(layout.document_lengths, device)
        self.means = document_means(layout.document_lengths, device)
        tokens = torch.arange(layout.length, device="cpu")
        self.base_positions = token_positions(layout, "last", tokens).to(device)
        self.rotates = angles is not None
        if angles is not None:
            self.style = angles.style
            cos, sin = angles.cos.to(device), angles.sin.to(device)
            beyond = torch.arange(layout.length, cos.shape[0], device=device)
            where = torch.cat((self.base_positions, beyond))
            self.base_cos, self.base_sin = cos[where], sin[where]
            # Yarn-like variants multiply a factor into the table; the base rotation applies it,
            # the shift on top must not apply it again.
            self.shift_cos, self.shift_sin = cos / cos[:1], sin / cos[:1]
            self.base_rotation = torch.stack((self.base_cos, self.base_sin), dim=-1).flatten(-2)
            self.shift_back = torch.stack((self.shift_cos, -self.shift_sin), dim=-1).flatten(-2)

    def positions(self, tokens: int) -> Tensor:
        """Base positions of the first `tokens` of prompt and generated text."""
        length = self.layout.length
        if tokens <= length:
            return self.base_positions[:tokens]
        beyond = torch.arange(length, tokens, device=self.base_positions.device)
        return torch.cat((self.base_positions, beyond))


def base_rotate(x: Tensor, tables: PineTables, start: int = 0) -> Tensor:
    """Rotate queries or keys at their base positions.

    Args:
        x: `[..., n, d]` un-rotated, tokens `start..start+n` of prompt and generated text.
        tables: of the prompt.
        start: index of the first token.

    Returns:
        A tensor of the shape and dtype of `x`; `x` itself in a layer without rotary embedding.
    """
    if not tables.rotates:
        return x
    where = slice(start, start + x.shape[-2])
    return rotate(x, tables.base_cos[where], tables.base_sin[where], tables.style)


def base_rotate_pairs(x: Tensor, tables: PineTables, start: int) -> Tensor:
    """`base_rotate` of a float32 tensor, with the two dimensions of a pair made neighbours."""
    width = 2 * tables.style.pairs
    rotation = _complex(tables.base_rotation[start : start + x.shape[-2]])
    pairs = _adjacent_pairs(x, tables.style)
    rotated = torch.view_as_real(_complex(pairs[..., :width]) * rotation).flatten(-2)
    return torch.cat((rotated, pairs[..., width:]), dim=-1) if width < pairs.shape[-1] else rotated


class MovingKeys:
    """Keys of prefix and documents as one query document after another sees them.

    Query heads rank documents for themselves, so each has keys of its own.

    Args:
        base: `[g, P + T, d]` float32 keys at base positions.
        heads: query heads `h`.
        tables: of the prompt.

    Attributes:
        keys: `[h, P + T, d]` with pairs adjacent, rewritten by `move_back`.
    """

    def __init__(self, base: Tensor, heads: int, tables: PineTables) -> None:
        first, g = tables.layout.prefix_tokens, base.shape[0]
        width = 2 * tables.style.pairs
        self._document_of = tables.document_of
        self._shift_back = tables.shift_back
        base = _adjacent_pairs(base, tables.style)
        self.keys = base.repeat_interleave(heads // g, dim=0)
        self._base = _complex(base[:, None, first:, :width])
        self._moving = _complex(self.keys.view(g, -1, *self.keys.shape[1:])[..., first:, :width])
        self._angles = base.new_empty(heads, base.shape[1] - first, width)
        self._rotation = _complex(self._angles).view(self._moving.shape)

    def move_back(self, shifts: Tensor) -> None:
        """Put every document `[h, D]` positions before its base."""
        torch.index_select(self._shift_back[shifts], 1, self._document_of, out=self._angles)
        torch.mul(self._base, self._rotation, out=self._moving)


def _complex(pairs: Tensor) -> Tensor:
    return torch.view_as_complex(pairs.view(*pairs.shape[:-1], -1, 2))


def _adjacent_pairs(x: Tensor, style: RotaryStyle) -> Tensor:
    """Reorder `[..., d]` so that the two dimensions of a rotated pair are neighbours, pairs first.

    A rotation is then one complex product. Dot products do not care, as long as queries and keys
    are reordered alike. One dimension of zeros is appended to an odd `d`.
    """
    pairs, width = style.pairs, 2 * style.pairs
    if style.pairing == "half":
        turned = torch.stack((x[..., :pairs], x[..., pairs:width]), dim=-1).flatten(-2)
        x = torch.cat((turned, x[..., width:]), dim=-1) if width < x.shape[-1] else turned
    return torch.nn.functional.pad(x, (0, 1)) if x.shape[-1] % 2 else x
