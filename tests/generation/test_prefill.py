"""What prompts of a batch begin with alike is read once, and nothing but time tells."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from rag_middle import ContextPrompt
from rag_middle.attention import read_row_by_row
from rag_middle.generation import RagMiddleModel, forward
from rag_middle.methods import NoMethod
from rag_middle.tokens import TokenizedPrompt
from tests.adapters import PromptTuned
from tests.conftest import FamilyModel
from tests.contract.snapshot import snapshot
from tests.families import SUPPORTED

#: Sliding windows, frequencies that depend on the length, linear attention.
READ_TOGETHER = {
    *("mistral_sliding", "qwen2_sliding", "gemma2", "gemma3_text", "olmo3", "gpt_oss", "cohere2"),
    *("exaone4", "llama_dynamic", "llama_longrope", "qwen3_next"),
}
#: A row alone goes through other kernels than rows together, in float32.
CLOSE = 1e-5


@pytest.fixture
def rows_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gets the number of rows of each reading by rows."""
    counts: list[int] = []

    def counted(model: PreTrainedModel, *args: object) -> object:
        cache = read_row_by_row(model, *args)  # type: ignore[arg-type]
        if cache is not None:
            layer: Any = cache.layers[0]
            counts.append(len(layer.keys))
        return cache

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


@pytest.mark.parametrize("name", SUPPORTED)
@pytest.mark.one_in(5)
def test_a_beginning_that_prompts_share_is_read_once(
    name: str, family_model: FamilyModel, monkeypatch: pytest.MonkeyPatch, rows_read: list[int]
) -> None:
    monkeypatch.setattr(forward, "_REPEATED", 1)
    model = family_model(name)
    prompt = assembled(6, 9, 4)
    prompts = [prompt.select(order) for order in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (0, 1), (0, 1))]
    scored = forward.continuation_scores(
        model, [[each] for each in prompts], [(5, 6)] * 5, NoMethod()
    )
    assert rows_read == ([] if name in READ_TOGETHER else [5])
    alone = [
        forward.continuation_scores(model, [[each]], [(5, 6)], NoMethod())[0] for each in prompts
    ]
    for together, apart in zip(scored, alone, strict=True):
        assert together.log_probabilities == pytest.approx(
            apart.log_probabilities,
            abs=10 * CLOSE,  # of numbers around 10
        )


def generated(model: RagMiddleModel, prompts: list[ContextPrompt], beams: int) -> list[Any]:
    found = model.batch(prompts, max_batch_size=32, max_new_tokens=5, num_beams=beams)
    return [each.token_ids for each in found]


ORDERS = ("abcdefgh", "abcdhgfe", "hgfedcba", "abcdef")
PROMPTS = [
    ContextPrompt("Read. ", [f"Document {name} says that {name} is {name}." for name in order], "?")
    for order in ORDERS
]


@pytest.mark.parametrize("beams", [1, 2])
def test_answers_to_prompts_that_begin_alike_are_those_of_each_alone(
    beams: int, model: RagMiddleModel, llama: PreTrainedModel, rows_read: list[int]
) -> None:
    before = snapshot(llama)
    together = generated(model, PROMPTS, beams)
    assert rows_read == [4 * beams]
    assert snapshot(llama) == before
    assert together == [generated(model, [prompt], beams)[0] for prompt in PROMPTS]
    assert rows_read == [4 * beams]


def test_virtual_tokens_and_caches_of_the_models_own_config_are_read_as_ever(
    llama: PreTrainedModel,
    model: RagMiddleModel,
    rows_read: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = generated(model, PROMPTS, 1)
    tuned: Any = PromptTuned(llama)
    generated(RagMiddleModel(tuned, model.tokenizer, self_check=False), PROMPTS, 1)
    monkeypatch.setattr(llama.generation_config, "cache_implementation", "static")
    assert generated(model, PROMPTS, 1) == expected
    assert rows_read == [4]


def test_only_what_follows_a_shared_beginning_goes_through_the_model(
    llama: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    layer = llama.model.layers[0]
    hook = layer.register_forward_pre_hook(lambda _, args: read.append(args[0].shape[1]))
    prompts = [[*range(3, 20), 2], [*range(3, 15), 50, 51, 2], [*range(3, 15), 50, 52, 53]]
    read_row_by_row(llama, prompts, torch.device("cpu"))
    hook.remove()
    assert read == [17, 2, 1]
