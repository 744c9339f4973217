"""What a request's KV cache has to look like: each layer in it holds what it read under the method.

A cache remembers which reading of a prompt each layer put into it, and how far; so do its copies. A
request may go on from a cache, and from copies of it, but not from one that was cut or filled by
another prompt. A static cache, whose length is on the device, is not asked for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from torch import Tensor
from transformers import DynamicCache

from rag_middle.errors import UnsupportedGenerationError


class RereadingCache(DynamicCache):
    """The empty cache of a pass that reads tokens once more, whose keys and values layers have.

    It does not look like the beginning of a prompt.

    Args:
        column: of the first of those tokens, for modules that ask the cache where they stand.
    """

    def __init__(self, column: int) -> None:
        super().__init__()
        self.column = column

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 1


def begins_prompt(cache: Any | None, layer: int, columns: int, width: int) -> bool:
    """Whether a call of `columns` tokens is the first of a run, so that nothing is cached yet.

    Args:
        cache: what the module was given.
        layer: index of the module.
        columns: tokens of the call.
        width: columns of the request's prompt; 0 where it is not known yet.
    """
    if cache is None:
        return True
    if columns == 1 < width:
        return False  # asking a static cache waits for the device: not at every generated token
    length = _length(cache, layer)
    return columns >= width if length is None else not length


#: The attribute of a cache with its `_Reading` of each layer.
_READINGS = "_rag_middle_readings"
_serial_numbers = count(1)


def _length(cache: Any, layer: int) -> int | Tensor | None:
    """Columns in a layer's cache; ``None`` where it attends to another layer's keys and values."""
    layers = getattr(cache, "layers", ())
    if layer < len(layers):
        return cache.get_seq_length(layer) if hasattr(layers[layer], "get_seq_length") else None
    return None if layer in vars(cache).get(_READINGS, ()) else cache.get_seq_length(layer)


@dataclass(slots=True)
class _Reading:
    """How many columns a layer has put into a cache, reading one prompt and what follows it.

    Attributes:
        number: tells readings apart, in copies of a cache too.
        columns: so far.
    """

    number: int
    columns: int


class ReadColumns:
    """What went through one layer during a request.

    Args:
        layer: index of the attention module.
        prefilled: columns that the cache holds before the first call.
    """

    def __init__(self, layer: int, prefilled: int) -> None:
        self._layer = layer
        self._reading: _Reading | None = None
        self._prefilled = prefilled

    def begin(self, cache: Any | None, columns: int, width: int) -> int:
        """Columns of prompt and generated tokens before a call of `columns` tokens.

        Args:
            cache: what the module was given.
            columns: tokens of the call.
            width: columns of the request's prompt; 0 where it is not known yet.

        Raises:
            UnsupportedGenerationError: the cache holds something else than what the layer read.
        """
        if isinstance(cache, RereadingCache) and self._reading is not None:
            return self._reading.columns
        readings = {} if cache is None else vars(cache).setdefault(_READINGS, {})
        if begins_prompt(cache, self._layer, columns, width):
            reading = _Reading(next(_serial_numbers), 0)
        else:
            reading = self._continued(cache, readings)
        self._reading = readings[self._layer] = reading
        return reading.columns

    def _continued(self, cache: Any, readings: dict[int, _Reading]) -> _Reading:
        last = self._reading or _Reading(next(_serial_numbers), self._prefilled)
        # What another request left in the cache does not matter to the first call.
        reading = readings.get(self._layer) if self._reading else None
        cached = _length(cache, self._layer)
        if isinstance(cached, Tensor):  # on the device: a static cache that is known is not asked
            cached = int(cached) if reading is None else None
        reading = reading or replace(last)  # the cache was filled, or put together, by hand
        if reading.number == last.number and cached in (None, reading.columns):
            return reading
        count = "other" if cached in (None, last.columns) else cached
        raise UnsupportedGenerationError(
            f"The KV cache holds {count} tokens, and {last.columns} were read under the method: it "
            "was filled elsewhere (by a prefix of virtual tokens, or from another prompt, say), or "
            "cut or left out since. Under a method that changes attention the whole prompt comes "
            "in one pass and each further token once, with the same cache: no assisted decoding, "
            "no DynamicCache.crop(), and of adapters those in weights, such as LoRA. "
            "method='none' takes all of these."
        )

    def end(self, stop: int) -> None:
        """Say up to which column the layer has read."""
        if self._reading is not None:
            self._reading.columns = stop
