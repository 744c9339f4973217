"""A request goes on from its caches, from copies of them, and from rows that were repeated."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, PreTrainedModel, StaticCache

from benchmarks.operation_counts import prompt_of, without_numbers
from rag_middle.attention import applied
from rag_middle.attention.seam import MODEL_CACHE
from rag_middle.errors import RagMiddleError, UnsupportedGenerationError
from rag_middle.layout import PromptLayout
from rag_middle.methods import (
    APE,
    PINE,
    SIW,
    AttentionBuckets,
    DySCO,
    Method,
    MsPoE,
    NoInterDocumentAttention,
    SelfExtend,
    StructuredPrompting,
    ZeroTuning,
)
from tests.conftest import FamilyModel
from tests.contract.running import distance
from tests.prompts import laid_out

pytestmark = pytest.mark.thorough

LAYOUT = PromptLayout(12, ((2, 5), (5, 9)))
SHORT = PromptLayout(9, ((2, 4), (4, 7)))
IDS = torch.arange(5, 17)[None]
OTHER = IDS.flip(1)
TOLERANCE = 1e-4  # float32 sums in another order
METHODS: dict[str, Method] = {
    "pine": PINE(),
    "ape": APE(temperature=0.6, scale=0.8),
    "self_extend": SelfExtend(group=2, window=4),
    "zero_tuning": ZeroTuning(factor=3.0),
    "siw": SIW(alpha_dense=0.3, alpha_sparse=2.0, layers=(0, 1)),
    "ms_poe": MsPoE(first_layer=0),
    "structured_prompting": StructuredPrompting(),
    "no_inter_document_attention": NoInterDocumentAttention(),
}
NewCache = Callable[[PreTrainedModel], Any]
CACHES: dict[str, NewCache] = {
    "dynamic": lambda model: DynamicCache(config=model.config),
    "static": lambda model: StaticCache(config=model.config, max_cache_len=20),
}
anew = pytest.mark.parametrize("new", CACHES.values(), ids=CACHES)


def _next(model: Any, cache: Any, tokens: Sequence[int]) -> Tensor:
    """Logits `[rows, v]` after one more token of each row."""
    return model(input_ids=torch.tensor(tokens)[:, None], **{MODEL_CACHE: cache}).logits[:, -1]  # type: ignore[no-any-return]


def _continued(model: Any, method: Method, cache: Any, tokens: Sequence[int]) -> list[Tensor]:
    """Logits after each of the tokens, behind the prompt."""
    with torch.no_grad(), applied(model, method, [laid_out(LAYOUT, IDS[0].tolist())]):
        model(input_ids=IDS, **{MODEL_CACHE: cache})
        return [_next(model, cache, [token]) for token in tokens]


@anew
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.one_in(3)
def test_a_cache_and_its_copy_are_continued_in_turn(llama: Any, name: str, new: NewCache) -> None:
    method = METHODS[name]
    expected = [_continued(llama, method, new(llama), tokens) for tokens in ([3, 4, 8], [6, 7])]
    with torch.no_grad(), applied(llama, method, [laid_out(LAYOUT, IDS[0].tolist())]):
        cache = new(llama)
        llama(input_ids=IDS, **{MODEL_CACHE: cache})
        copy = deepcopy(cache)
        first = [_next(llama, cache, [token]) for token in (3, 4)]
        second = [_next(llama, copy, [token]) for token in (6, 7)]
        first.append(_next(llama, cache, [8]))
    for logits, theirs in zip((first, second), expected, strict=True):
        assert distance(torch.cat(logits), torch.cat(theirs)) < TOLERANCE


@anew
@pytest.mark.parametrize("name", ["pine", "ape", "ms_poe"])
def test_the_cache_of_an_earlier_prompt_is_refused(llama: Any, name: str, new: NewCache) -> None:
    with torch.no_grad(), applied(llama, METHODS[name], [laid_out(LAYOUT, IDS[0].tolist())]):
        caches = [new(llama), new(llama)]
        for ids, cache in zip((IDS, OTHER), caches, strict=True):
            llama(input_ids=ids, **{MODEL_CACHE: cache})
        with pytest.raises(UnsupportedGenerationError, match="another prompt"):
            _next(llama, caches[0], [3])


def test_a_static_cache_is_not_asked_for_its_length() -> None:
    model = without_numbers(
        LlamaConfig(
            hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            vocab_size=99,
        )
    )  # fmt: skip
    states = torch.zeros(1, 200, 64, device="meta", dtype=torch.bfloat16)
    cache = StaticCache(config=model.config, max_cache_len=208)
    # A tensor without numbers raises where one is asked for.
    with applied(model, APE(), [prompt_of(200, 3)]):
        for passed in (states, states[:, :1], states[:, :1]):
            model(inputs_embeds=passed, use_cache=True, **{MODEL_CACHE: cache})


def _masked(layouts: Sequence[PromptLayout]) -> Tensor:
    width = max(layout.length for layout in layouts)
    return torch.stack([torch.arange(width) >= width - each.length for each in layouts]).long()


def _of_rows(
    model: Any,
    method: Method,
    layouts: Sequence[PromptLayout],
    rows: Sequence[int],
    later: Sequence[int] | None = None,
) -> Tensor:
    """Logits after two more tokens.

    Args:
        model: under the method.
        method: of the block.
        layouts: of its prompts.
        rows: the prompt in each row.
        later: which of the rows are in the cache after the prompts; ``None`` for all.
    """
    ids, mask = torch.cat((IDS, OTHER))[: len(layouts)], _masked(layouts)
    prompts = [
        laid_out(layout, row[-layout.length :].tolist())
        for layout, row in zip(layouts, ids, strict=True)
    ]
    at = list(rows)
    with torch.no_grad(), applied(model, method, prompts):
        cache = DynamicCache(config=model.config)
        model(input_ids=ids[at], attention_mask=mask[at], **{MODEL_CACHE: cache})
        if later is not None:
            cache.batch_select_indices(torch.tensor(later))
            at = [at[row] for row in later]
        mask = mask[at]
        for token in (3, 6):
            mask = torch.cat((mask, mask.new_ones(len(at), 1)), dim=1)
            tokens = torch.tensor(at)[:, None] + token
            logits = model(input_ids=tokens, attention_mask=mask, **{MODEL_CACHE: cache}).logits
    return logits[:, -1]  # type: ignore[no-any-return]


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.one_in(5)
def test_prompts_may_take_more_rows_once_they_are_read(
    family_model: FamilyModel, family: str, name: str
) -> None:
    model, method = family_model(family), METHODS[name]
    for layouts in ([LAYOUT], [LAYOUT, SHORT], [LAYOUT, LAYOUT]):
        single, double = ([row for row in range(len(layouts)) for _ in range(n)] for n in (1, 2))
        expected = _of_rows(model, method, layouts, double)
        assert distance(_of_rows(model, method, layouts, single, double), expected) < TOLERANCE
        fewer = _of_rows(model, method, layouts, double, [2 * row for row in single])
        assert distance(fewer, expected[::2]) < TOLERANCE


@pytest.mark.parametrize(
    "method", [PINE(), METHODS["ape"], DySCO(heads=((1, 0),)), AttentionBuckets()], ids=str
)
def test_rows_of_some_prompts_only_are_refused(family_model: FamilyModel, method: Method) -> None:
    with pytest.raises(RagMiddleError, match=r"3 rows for 2 (layouts|readings)"):
        _of_rows(family_model("llama"), method, [LAYOUT, LAYOUT], [0, 0, 1, 1], [0, 1, 2])
