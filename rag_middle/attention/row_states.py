"""Rows of a batch read one after the other, into the cache that they would have left together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from operator import eq

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from rag_middle.attention.adapters import invocation_of, puts_virtual_tokens
from rag_middle.attention.patch import model_traits


@dataclass(frozen=True, slots=True)
class _Beginning:
    """The first tokens of a prompt that an earlier prompt of the batch begins with too.

    Attributes:
        tokens: how many.
        row: of the batch, which has their keys and values.
        padding: columns before them in that row.
    """

    tokens: int = 0
    row: int = 0
    padding: int = 0


@dataclass(slots=True)
class _WholeLayer:
    """Keys and values of all rows of one layer.

    Attributes:
        rows: of the batch.
        columns: of the cache.
        keys: `[b, g, n, d]`, zero in the padding; made by the first row that comes.
        values: `[b, g, n, dv]`.
    """

    rows: int
    columns: int
    keys: Tensor = field(default_factory=lambda: torch.empty(0, device="cpu"))
    values: Tensor = field(default_factory=lambda: torch.empty(0, device="cpu"))

    def put(self, rows: slice, key: Tensor, value: Tensor) -> None:
        """Store the last tokens of a prompt, `[1, g, m, d]`, at the end of some rows."""
        if not self.keys.numel():
            self.keys = key.new_zeros(self.rows, key.shape[1], self.columns, key.shape[3])
            self.values = value.new_zeros(self.rows, value.shape[1], self.columns, value.shape[3])
        padding = self.columns - key.shape[2]
        self.keys[rows, :, padding:] = key
        self.values[rows, :, padding:] = value

    def copy(self, rows: slice, padding: int, beginning: _Beginning) -> None:
        """Copy the states of `beginning` to some rows, behind `padding` columns."""
        source = slice(beginning.padding, beginning.padding + beginning.tokens)
        for states in (self.keys, self.values):
            states[rows, :, padding : padding + beginning.tokens] = states[beginning.row, :, source]

    def row(self, index: int, columns: slice) -> tuple[Tensor, Tensor]:
        """Keys and values of some columns of a row, `[1, g, columns, d]`: views, not copies."""
        return self.keys[index : index + 1, :, columns], self.values[index : index + 1, :, columns]


class _AllStoredError(Exception):
    """The last layer's keys and values are stored: nothing else of the pass is wanted."""


class _OtherTokensError(Exception):
    """The model reads other tokens than it was given."""


class _RowLayer(DynamicLayer):
    """What the model sees of a `_WholeLayer` while it reads one prompt.

    Args:
        whole: where keys and values go.
        rows: that the prompt takes.
        columns: of the prompt.
        beginning: of the prompt, whose states `whole` has already and which is not read again.
        last: no later layer has a cache.
    """

    def __init__(
        self, whole: _WholeLayer, rows: slice, columns: int, beginning: _Beginning, *, last: bool
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._whole = whole
        self._rows = rows
        self._columns = columns
        self._new = columns - beginning.tokens
        self._last = last
        if beginning.tokens:
            padding = whole.columns - columns
            whole.copy(rows, padding, beginning)
            self.lazy_initialization(whole.keys, whole.values)
            self.keys, self.values = whole.row(
                rows.start, slice(padding, padding + beginning.tokens)
            )

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        if key_states.shape[2] != self._new:
            raise _OtherTokensError
        self.lazy_initialization(key_states, value_states)
        self._whole.put(self._rows, key_states, value_states)
        columns = slice(self._whole.columns - self._columns, None)
        self.keys, self.values = self._whole.row(self._rows.start, columns)
        if self._last:
            raise _AllStoredError
        return self.keys, self.values


def repeated_tokens(prompts: Sequence[Sequence[int]]) -> int:
    """How many tokens of all prompts, each without its last one, begin an earlier prompt too."""
    return sum(_repeated(prompts, index)[0] for index in range(len(prompts)))


def _repeated(prompts: Sequence[Sequence[int]], index: int) -> tuple[int, int]:
    """How many first tokens of a prompt the earlier prompt most like it has, and its index."""
    own = prompts[index][:-1]
    counts = [sum(takewhile(bool, map(eq, own, other[:-1]))) for other in prompts[:index]]
    most = max(counts, default=0)
    return most, counts.index(most) if most else 0


def can_share_prompts(model: PreTrainedModel) -> bool:
    """Whether what this model makes of the beginning of a prompt may be gone on from.

    Not where its attention cannot be reached, nor where a layer keeps something else than every
    token's key and value (windows, linear attention), nor where rotary frequencies depend on the
    length of what is read, or an adapter on which tokens are read together.
    """
    traits = model_traits(model)
    rope_type = traits.rope_type or ""
    return (
        bool(traits.layers)
        and not traits.mixed
        and not any(kind in rope_type for kind in ("dynamic", "longrope"))
        and not any(layer.sliding_window for layer in traits.layers.values())
        and not invocation_of(model)
        and not puts_virtual_tokens(model)
    )


@torch.no_grad()
def read_row_by_row(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    device: torch.device,
    repeats: int = 1,
) -> DynamicCache | None:
    """What the unmodified model makes of a left-padded batch, without its last column, as a cache.

    Tokens at the beginning of a prompt that an earlier one begins with are not read again. ``None``
    where a wrapper of the model reads virtual tokens before each prompt (prompt tuning, prefix
    tuning): such a cache is not the prompts' alone.

    Args:
        model: whose cache keeps every token (see `can_share_prompts`).
        prompts: token ids, two or more each.
        device: where token ids go in.
        repeats: rows that each prompt takes (beams).
    """
    columns = max(map(len, prompts)) - 1
    layers = range(model_traits(model).num_layers)
    wholes = [_WholeLayer(len(prompts) * repeats, columns) for _ in layers]
    for index, ids in enumerate(prompts):
        rows = slice(index * repeats, (index + 1) * repeats)
        length = len(ids) - 1
        tokens, earlier = _repeated(prompts, index)
        padding = columns - len(prompts[earlier]) + 1
        beginning = _Beginning(tokens, earlier * repeats, padding)
        cache = Cache(
            layers=[
                _RowLayer(whole, rows, length, beginning, last=whole is wholes[-1])
                for whole in wholes
            ]
        )
        if tokens == length:
            continue
        try:
            new_ids = torch.tensor([ids[tokens:-1]], device=device)
            model(input_ids=new_ids, past_key_values=cache, use_cache=True)
        except _AllStoredError:
            continue
        except _OtherTokensError:
            pass
        return None  # other tokens, or another cache
    filled = DynamicCache()
    for whole in wholes:
        layer = DynamicLayer()
        layer.lazy_initialization(whole.keys, whole.values)
        layer.keys, layer.values = whole.keys, whole.values  # `update` would copy them
        filled.layers.append(layer)
    return filled
