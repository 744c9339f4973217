"""A cache with room holds what a growing one holds, and copies nothing at a generated token."""

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, LlamaConfig

from benchmarks.operation_counts import counted
from rag_middle.generation.growing_cache import with_room
from tests.tiny_models import tiny


def _states(columns: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    key, value = (torch.randn(2, 3, columns, size, generator=generator) for size in (4, 5))
    return key, value


def _caches(columns: int) -> tuple[DynamicCache, DynamicCache]:
    grown, roomy = DynamicCache(), DynamicCache()
    for cache in (grown, roomy):
        cache.update(*_states(3, 0), 0)
    return grown, with_room(roomy, columns)


@pytest.mark.parametrize("columns", [4, 7, 100])
def test_it_holds_what_a_growing_cache_holds(columns: int) -> None:
    caches = _caches(columns)
    changes = {
        2: lambda cache: cache.crop(-2),
        4: lambda cache: cache.reorder_cache(torch.tensor([1, 0])),
        6: lambda cache: cache.batch_select_indices(torch.tensor([0])),
        8: lambda cache: cache.batch_repeat_interleave(2),
    }
    for step in range(1, 11):
        results = []
        for cache in caches:
            if step in changes:
                changes[step](cache)
            rows = cache.layers[0].keys.shape[0]
            states = (x[:rows] for x in _states(1 + step % 2, step))
            results.append(cache.update(*states, 0))
        for grown, roomy in zip(*results, strict=True):
            assert torch.equal(grown, roomy)
        assert caches[0].get_seq_length() == caches[1].get_seq_length()


def test_a_token_moves_only_itself() -> None:
    cache = with_room(DynamicCache(config=tiny(LlamaConfig, num_hidden_layers=1)), 600)
    prompt, token = (torch.empty(1, 2, n, 16, device="meta") for n in (500, 1))
    cache.update(prompt, prompt, 0)
    with counted() as work:
        cache.update(token, token, 0)
    assert work.bytes == 2 * 2 * token.nbytes  # keys and values, read and written
