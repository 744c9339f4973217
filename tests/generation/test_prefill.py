"""Branches of long prompts are read one after the other, and nothing but time tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rag_middle import ContextPrompt
from rag_middle.attention import AttentionPlan, model_traits, read_row_by_row
from rag_middle.errors import MethodConfigError
from rag_middle.generation import RagMiddleModel, forward
from rag_middle.generation.forward import prompt_logits
from rag_middle.methods import (
    SIW,
    AttentionBuckets,
    Compose,
    Method,
    NoMethod,
    Permutation,
    RoToR,
)
from rag_middle.tokens import TokenizedPrompt
from tests.adapters import PromptTuned
from tests.conftest import FamilyModel
from tests.contract.running import distance
from tests.contract.snapshot import snapshot
from tests.families import FAMILIES, SUPPORTED

BUCKETS = AttentionBuckets(base_factors=(1.0, 2.0, 4.0))
#: Sliding windows, frequencies that depend on the length, linear attention.
READ_TOGETHER = {
    *("mistral_sliding", "qwen2_sliding", "gemma2", "gemma3_text", "olmo3", "gpt_oss", "cohere2"),
    *("exaone4", "llama_dynamic", "llama_longrope", "qwen3_next"),
}
#: A row alone goes through other kernels than rows together, in float32.
CLOSE = 1e-5


@pytest.fixture
def rows_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Prompts of any length count as long; gets the number of rows of each reading by rows."""
    counts: list[int] = []

    def counted(model: PreTrainedModel, *args: object) -> object:
        cache = read_row_by_row(model, *args)  # type: ignore[arg-type]
        layer: Any = cache.layers[0]
        counts.append(len(layer.keys))
        return cache

    monkeypatch.setattr(forward, "_LONG_PROMPT", 2)
    monkeypatch.setattr(forward, "read_row_by_row", counted)
    return counts


def assembled(*lengths: int) -> TokenizedPrompt:
    generator = torch.Generator().manual_seed(sum(lengths))

    def drawn(count: int) -> list[int]:
        return torch.randint(3, 60, (count,), generator=generator).tolist()

    return TokenizedPrompt.assembled(
        prefix=drawn(4),
        documents=[drawn(length) for length in lengths],
        suffix=drawn(5),
        document_ids=[None] * len(lengths),
        scores=None,
    )


def branches_of(prompt: TokenizedPrompt, orders: int) -> tuple[TokenizedPrompt, ...]:
    count = len(prompt.layout.documents)
    return tuple(prompt.select([*range(first, count), *range(first)]) for first in range(orders))


@pytest.mark.parametrize("name", SUPPORTED)
@pytest.mark.one_in(5)
def test_reading_by_rows_changes_no_logits_of_any_family(
    name: str, family_model: FamilyModel, monkeypatch: pytest.MonkeyPatch, rows_read: list[int]
) -> None:
    model = family_model(name)
    prompt = assembled(6, 9, 4)
    methods: list[tuple[Method, tuple[TokenizedPrompt, ...]]] = [
        (Permutation(orders=3), branches_of(prompt, 3))
    ]
    if FAMILIES[name].traits.positions == "rope":
        methods.append((BUCKETS, (prompt,) * 3))
    for method, branches in methods:
        apart = prompt_logits(model, branches, method, all_positions=False)
        assert rows_read == ([] if name in READ_TOGETHER else [3])
        rows_read.clear()
        with monkeypatch.context() as long:
            long.setattr(forward, "_LONG_PROMPT", 10_000)
            together = prompt_logits(model, branches, method, all_positions=False)
        assert distance(apart.softmax(-1), together.softmax(-1)) < CLOSE


def generated(
    model: RagMiddleModel, prompts: list[ContextPrompt], method: Method, beams: int
) -> list[tuple[int, ...]]:
    options = {"max_new_tokens": 5, "num_beams": beams}
    found = model.batch(prompts, method=method, max_batch_size=32, **options)  # type: ignore[arg-type]
    return [each.token_ids for each in found]


@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize(("method", "branches"), [(BUCKETS, 12), (Permutation(orders=2), 7)])
def test_batches_of_unequal_prompts_and_beams_go_on_from_it(
    beams: int,
    method: Method,
    branches: int,  # one document has one order
    model: RagMiddleModel,
    prompts: list[ContextPrompt],
    rows_read: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lengths = {len(model.encode(prompt)) for prompt in prompts}
    assert len(lengths) > 1  # some are padded
    apart = generated(model, prompts, method, beams)
    assert sum(rows_read) == branches * beams
    monkeypatch.setattr(forward, "_LONG_PROMPT", 10_000)
    assert generated(model, prompts, method, beams) == apart


def test_continuations_are_scored_from_it(
    model: RagMiddleModel,
    prompts: list[ContextPrompt],
    rows_read: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def scored() -> Tensor:
        scores = model.score_batch(prompts, [" Lyon"] * len(prompts), method=BUCKETS)
        return torch.tensor([score.total for score in scores])

    apart = scored()
    assert rows_read
    monkeypatch.setattr(forward, "_LONG_PROMPT", 10_000)
    assert distance(apart, scored()) < CLOSE * len(" Lyon")  # a sum over its tokens


@pytest.mark.parametrize(
    "method",
    [
        Compose(methods=(BUCKETS, SIW())),  # reweights the attention of the prompt's tokens
        RoToR(routing=0.0),  # documents in a circle
    ],
    ids=["siw", "rotor"],
)
def test_methods_that_keep_more_of_a_prompt_read_rows_together(
    method: Method, model: RagMiddleModel, prompt: ContextPrompt, rows_read: list[int]
) -> None:
    model.generate(prompt, method=method, max_new_tokens=2)
    assert rows_read == []


def test_a_plan_that_does_more_than_rotate_cannot_be_taken_apart(model: RagMiddleModel) -> None:
    method = Compose(methods=(BUCKETS, SIW()))
    prompts = (assembled(6, 9, 4),) * 3
    with pytest.raises(MethodConfigError, match="run all of its prompts together"):
        method.plan(prompts, model_traits(model.model)).of_prompt(0)


def test_a_model_is_left_as_it_was_when_reading_a_row_fails(
    llama: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = assembled(6, 9)
    before = snapshot(llama)
    layer = llama.model.layers[0].mlp
    forward: Callable[[Tensor], Tensor] = layer.forward
    calls = 0

    def fails(hidden: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise MemoryError("no room")
        return forward(hidden)

    plan = BUCKETS.plan((prompt,) * 3, model_traits(llama))
    with monkeypatch.context() as broken:
        broken.setattr(layer, "forward", fails)
        with pytest.raises(MemoryError, match="no room"):
            read_row_by_row(llama, plan, [prompt.input_ids] * 3, torch.device("cpu"))
    assert snapshot(llama) == before


def test_branches_behind_virtual_tokens_are_read_together(
    llama: PreTrainedModel,
    model: RagMiddleModel,
    prompt: ContextPrompt,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tuned: Any = PromptTuned(llama)
    behind = RagMiddleModel(tuned, model.tokenizer, self_check=False)
    together = behind.logits(prompt, method=BUCKETS)
    assert distance(together, model.logits(prompt, method=BUCKETS)) > 0.1
    monkeypatch.setattr(forward, "_LONG_PROMPT", 2)
    assert torch.equal(behind.logits(prompt, method=BUCKETS), together)


def test_a_model_is_left_as_it_was_after_reading(llama: PreTrainedModel) -> None:
    prompt = assembled(6, 9)
    before = snapshot(llama)
    plan = BUCKETS.plan((prompt,) * 3, model_traits(llama))
    read_row_by_row(llama, plan, [prompt.input_ids] * 3, torch.device("cpu"))
    assert snapshot(llama) == before


@pytest.mark.parametrize("implementation", ["static", "dynamic"])
def test_a_cache_that_the_models_own_config_asks_for_is_not_prefilled(
    implementation: str,
    llama: PreTrainedModel,
    model: RagMiddleModel,
    prompt: ContextPrompt,
    rows_read: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = model.generate(prompt, method=BUCKETS, max_new_tokens=4).token_ids
    assert rows_read == [3]
    monkeypatch.setattr(llama.generation_config, "cache_implementation", implementation)
    found = model.generate(prompt, method=BUCKETS, max_new_tokens=4)
    assert found.token_ids == expected
    assert rows_read == [3]


@pytest.mark.parametrize("name", SUPPORTED)
@pytest.mark.one_in(5)
def test_a_beginning_that_prompts_share_is_read_once(
    name: str, family_model: FamilyModel, monkeypatch: pytest.MonkeyPatch, rows_read: list[int]
) -> None:
    monkeypatch.setattr(forward, "_REPEATED", 1)
    model = family_model(name)
    prompt = assembled(6, 9, 4)
    prompts = [prompt.select(order) for order in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (0, 1), (0, 1))]
    scored = forward.continuation_log_probabilities(
        model, [[each] for each in prompts], [(5, 6)] * 5, NoMethod()
    )
    assert rows_read == ([] if name in READ_TOGETHER else [5])
    alone = [
        forward.continuation_log_probabilities(model, [[each]], [(5, 6)], NoMethod())[0]
        for each in prompts
    ]
    for together, apart in zip(scored, alone, strict=True):
        assert together.log_probabilities == pytest.approx(
            apart.log_probabilities,
            abs=10 * CLOSE,  # of numbers around 10
        )


@pytest.mark.parametrize("beams", [1, 2])
def test_answers_to_prompts_that_begin_alike_are_those_of_each_alone(
    beams: int, model: RagMiddleModel, monkeypatch: pytest.MonkeyPatch, rows_read: list[int]
) -> None:
    documents = [f"Document {name} says that {name} is {name}." for name in "abcdefgh"]
    orders = [documents, [*documents[:4], *documents[:3:-1]], documents[::-1], documents[:6]]
    prompts = [ContextPrompt("Read. ", order, "What is a?") for order in orders]
    together = generated(model, prompts, NoMethod(), beams)
    assert rows_read == [4 * beams]
    alone = [generated(model, [prompt], NoMethod(), beams)[0] for prompt in prompts]
    assert together == alone
    assert rows_read == [4 * beams]


def test_only_what_follows_a_shared_beginning_goes_through_the_model(
    llama: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    layer = llama.model.layers[0]
    hook = layer.register_forward_pre_hook(lambda _, args: read.append(args[0].shape[1]))
    prompts = [[*range(3, 20), 2], [*range(3, 15), 50, 51, 2], [*range(3, 15), 50, 52, 53]]
    read_row_by_row(llama, AttentionPlan(), prompts, torch.device("cpu"))
    hook.remove()
    assert read == [17, 2, 1]
