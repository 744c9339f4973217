"""A KV cache with room: a generated token is written after the others, which stay where they are.

transformers' growing cache joins old and new keys into a fresh tensor at every token and layer: it
reads and writes the whole cache once more than attention needs. A static cache does not, but is
masked to its full length, and drops what a sliding window leaves out.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer


class RoomyLayer(DynamicLayer):
    """A growing layer whose `keys` and `values` are the beginning of larger tensors.

    Whatever else changes them (crop, reorder, select) puts other tensors in their place; the next
    update then makes room anew.

    Args:
        columns: to make room for; half as many again where they do not suffice.
        layer: whose keys and values to begin with.
    """

    def __init__(self, columns: int, layer: DynamicLayer | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._columns = columns
        self._rooms: dict[str, tuple[Tensor, Tensor]] = {}  # each with the view of what is held
        if layer is not None and layer.keys is not None and layer.values is not None:
            self.lazy_initialization(layer.keys, layer.values)
            self.keys, self.values = layer.keys, layer.values

    def update(
        self, key_states: Tensor, value_states: Any, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Add keys `[b, g, n, d]` and values `[b, g, n, dv]`; returns all there are."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys = self._extended("keys", self.keys, key_states)
        self.values = self._extended("values", self.values, value_states)
        return self.keys, self.values

    def _extended(self, name: str, present: Tensor | None, new: Tensor) -> Tensor:
        start = present.shape[-2] if present is not None and present.numel() else 0
        stop = start + new.shape[-2]
        room, view = self._rooms.get(name, (None, None))
        if room is None or view is not present or room.shape[-2] < stop:
            columns = self._columns if self._columns >= stop else stop + stop // 2
            room = new.new_empty(*new.shape[:-2], columns, new.shape[-1])
            if present is not None and start:
                room[..., :start, :] = present
        room[..., start:stop, :] = new
        view = room[..., :stop, :]
        self._rooms[name] = (room, view)
        return view

    def reset(self) -> None:
        """Forget everything."""
        self._rooms.clear()
        super().reset()


def with_room(cache: DynamicCache, columns: int) -> DynamicCache:
    """The cache, its growing layers with room for `columns` columns; other layers as they are.

    Layers with a sliding window keep so little that joining it costs nothing.
    """
    cache.layers = [
        RoomyLayer(columns, layer) if type(layer) is DynamicLayer else layer
        for layer in cache.layers
    ]
    return cache
