"""What one request knows while its forward passes run: rows, paddings, rotary tables."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from rag_middle.attention.rotary import RotaryTables
from rag_middle.errors import MethodConfigError, UnsupportedGenerationError
from rag_middle.layout import PromptLayout
from rag_middle.options import Kernels, KernelsUsed

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Batch rows that share one prompt layout and padding (the beams of one prompt, say)."""

    rows: tuple[int, ...]
    padding: int
    layout: PromptLayout

    @property
    def index(self) -> slice | list[int]:
        """Of these rows; a slice where they are contiguous: a list is sent to the device."""
        first, last = self.rows[0], self.rows[-1]
        contiguous = last - first + 1 == len(self.rows)
        return slice(first, last + 1) if contiguous else list(self.rows)

    def take(self, tensor: Tensor) -> Tensor:
        """These rows of a tensor `[b, ...]`; a view where they are contiguous."""
        return tensor[self.index]


def row_groups(layouts: Sequence[PromptLayout], rows: int, width: int) -> tuple[RowGroup, ...]:
    """The rows of prompts of `width` columns, each of which takes equally many consecutive rows."""
    grouped: dict[tuple[int, PromptLayout], list[int]] = {}
    for row in range(rows):
        layout = layouts[row * len(layouts) // rows]
        grouped.setdefault((width - layout.length, layout), []).append(row)
    return tuple(
        RowGroup(rows=tuple(members), padding=padding, layout=layout)
        for (padding, layout), members in grouped.items()
    )


def join_rows(groups: tuple[RowGroup, ...], parts: list[Tensor], *, padded: bool = True) -> Tensor:
    """One tensor `[b, heads, n, d]` from the groups' parts.

    Args:
        groups: of the request.
        parts: `[rows, heads, n - padding, d]` for each group, or `[rows, heads, n, d]` where not
            `padded`. Padding becomes zero.
        padded: parts leave their group's padding out.
    """
    if len(parts) == 1 and not (padded and groups[0].padding):
        return parts[0]
    rows = sum(len(group.rows) for group in groups)
    columns = parts[0].shape[2] + (groups[0].padding if padded else 0)
    whole = parts[0].new_zeros(rows, parts[0].shape[1], columns, parts[0].shape[3])
    for group, part in zip(groups, parts, strict=True):
        whole[group.index, :, columns - part.shape[2] :] = part
    return whole


def in_rows(kept: Tensor, rows: int) -> Tensor:
    """What was kept of each row, `[b, ...]`, for as many rows as there are now.

    Each prompt takes equally many consecutive rows, before and now, and its rows are alike.
    """
    if len(kept) == rows:
        return kept
    return kept[torch.arange(rows, device=kept.device) * len(kept) // rows]


def restored_columns(prompt: Tensor, cached: Tensor, stop: int) -> Tensor:
    """All `stop` columns of a sliding layer: the prompt's own, then what was generated.

    Generated tokens that the cache has dropped are beyond the window and stay zero: they are
    masked by their distance.
    """
    if cached.shape[2] == stop:
        return cached
    prompt = in_rows(prompt, len(cached))
    generated = stop - prompt.shape[2]
    recent = cached[:, :, max(0, cached.shape[2] - generated) :]
    dropped = cached.new_zeros(*cached.shape[:2], generated - recent.shape[2], cached.shape[3])
    return torch.cat((prompt, dropped, recent), dim=2)


@dataclass(slots=True)
class Request:
    """State of one request, shared by its layers. Nothing of it stays on the model.

    Attributes:
        layouts: one per prompt, in batch order.
        prefilled: columns of the prompt that are in the cache before the first pass.
        tables: rotary calls of the forward pass under way.
        width: columns of the prompt, padding included; 0 before the first forward pass.
        rows: of the batch, known from the first forward pass on.
        groups: rows by layout, known from the first forward pass on.
        attention_calls: attention calls answered so far; stays 0 when the method does not reach
            the model.
        forward_passes: forward passes of the model started so far.
        fed: columns that the model was given in the first of them; 0 where that is not known.
        kernels: what may compute the method's attention.
        kernels_used: what did.
        cache: weak reference to the model's cache that it fills; gives ``None`` before, and when
            that is gone.
    """

    layouts: tuple[PromptLayout, ...]
    prefilled: int = 0
    tables: RotaryTables = field(default_factory=RotaryTables)
    width: int = 0
    rows: int = 0
    groups: tuple[RowGroup, ...] = ()
    attention_calls: int = 0
    forward_passes: int = 0
    fed: int = 0
    kernels: Kernels = "auto"
    kernels_used: KernelsUsed = "torch"
    cache: Callable[[], Any] = lambda: None
    _shared: dict[Hashable, Any] = field(default_factory=dict)

    def record_shape(self, rows: int, columns: int, start: int = 0) -> None:
        """Take the prompt's shape from the first attention call of the request.

        Args:
            rows: of the call.
            columns: of the call.
            start: columns cached before it.

        Raises:
            MethodConfigError: rows that are no multiple of the layouts.
            UnsupportedGenerationError: a prompt that arrives in pieces, or another prompt.
        """
        if self.width:
            if start == 0 and (rows != self.rows or columns < self.width):
                raise UnsupportedGenerationError(
                    f"This block began with {self.rows} rows of {self.width} columns and now "
                    f"gets {rows} rows of {columns}: it serves one batch of prompts, any number "
                    "of times. Open another block for another batch."
                )
            if rows != self.rows:
                self._group(rows, self.width)
                self._shared.clear()  # some of it has rows
            return
        longest = max(layout.length for layout in self.layouts)
        if self.fed not in (0, columns):
            raise UnsupportedGenerationError(
                f"The model was given {self.fed} columns and its attention gets {columns}: tokens "
                "were put before the prompt, of which its layout knows nothing (prompt tuning, "
                "p-tuning). Use an adapter in weights, such as LoRA, or method='none'."
            )
        columns += start
        if columns < longest:
            raise UnsupportedGenerationError(
                f"The first forward pass has {columns} columns but a prompt has {longest} tokens: "
                "the whole prompt must come in one pass (no prefill_chunk_size, no prefilled "
                "cache)."
            )
        self._group(rows, columns)

    def _group(self, rows: int, width: int) -> None:
        """Take the number of rows, which may change when a prompt has been read.

        Raises:
            MethodConfigError: it is no multiple of the layouts.
        """
        repeats, remainder = divmod(rows, len(self.layouts))
        if remainder or not repeats:
            raise MethodConfigError(
                f"The batch has {rows} rows for {len(self.layouts)} layouts: give one layout per "
                "row, or per prompt where each prompt takes several rows in a row (beams)."
            )
        self.groups = row_groups(self.layouts, rows, width)
        self.rows, self.width = rows, width

    def check_prompt(self, tokens: Tensor | None, attention_mask: Any, cached: int = 0) -> None:
        """Compare the first pass's tokens with the layouts, where both are plain to see.

        Args:
            tokens: `[b, n]`, or their embeddings `[b, n, w]`.
            attention_mask: `[b, cached + n]`, zero for padding; ``None`` for no padding. Masks that
                were made for attention are left unread.
            cached: columns of the prompt before these.

        Raises:
            UnsupportedGenerationError: padding on the right, or more or fewer tokens than the
                layouts say: assisted decoding proposes tokens along with the prompt.
        """
        if tokens is None:
            return
        rows, self.fed = tokens.shape[:2]
        columns = cached + self.fed
        repeats, remainder = divmod(rows, len(self.layouts))
        is_padding_mask = attention_mask is not None
        counts = [columns] * rows
        if is_padding_mask:
            if not isinstance(attention_mask, Tensor) or attention_mask.shape != (rows, columns):
                return
            if not bool(attention_mask[:, -1].all()):
                raise UnsupportedGenerationError(
                    "The batch is padded on the right. Pad on the left, as generation needs anyway."
                )
            counts = [int(count) for count in attention_mask.sum(-1).tolist()]
        elif tokens.ndim > 2 and columns <= max(layout.length for layout in self.layouts):
            return  # embeddings of padding are nothing to tell by; tokens before all prompts are
        for row, count in enumerate([] if remainder else counts):
            length = self.layouts[row // repeats].length
            if count > length:
                raise UnsupportedGenerationError(
                    f"Row {row} has {count} tokens in the first forward pass and a layout of "
                    f"{length}. Give the layout of just this prompt; assisted decoding, which adds "
                    "proposed tokens to the prompt, and virtual tokens before it (prompt tuning) "
                    "cannot run under a method."
                )
            if is_padding_mask and count < length <= columns:
                raise UnsupportedGenerationError(
                    f"Row {row} has {count} tokens that are not masked, and a layout of {length}: "
                    "the mask leaves out tokens of the prompt. Leave them out of the prompt."
                )

    def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """Something that several layers need, made by the first one that asks."""
        if key not in self._shared:
            self._shared[key] = make()
        value: T = self._shared[key]
        return value

    def row_layouts(self) -> list[tuple[int, PromptLayout]]:
        """Padding and layout of every batch row."""
        of_row = {row: (group.padding, group.layout) for group in self.groups for row in group.rows}
        return [of_row[row] for row in sorted(of_row)]

    def paddings(self, device: torch.device) -> Tensor:
        """Left padding of every batch row, `[b]`; sent to a device once."""

        def make() -> Tensor:
            return torch.tensor([padding for padding, _ in self.row_layouts()], device=device)

        return self.shared(("paddings", device), make)
