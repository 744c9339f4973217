"""Blocks of one thread that do not end in the order in which they began: generators and tasks."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel

from rag_middle import ContextPrompt, Document, MethodConfigError, applied
from rag_middle.methods import PINE
from rag_middle.tokens import encode
from tests.tiny_models import build, tiny
from tests.tokenizers import byte_level_bpe

TOKENIZER = byte_level_bpe()
PROMPT = encode(
    TOKENIZER,
    ContextPrompt("", [Document("the fox"), Document("a river"), Document("is blue")], "Which?"),
    template="raw",
)


def small_model(name: str) -> PreTrainedModel:
    return build(name, tiny(LlamaConfig, vocab_size=len(TOKENIZER)), "sdpa")


@torch.no_grad()
def logits(model: PreTrainedModel) -> Tensor:
    row: Tensor = model(input_ids=torch.tensor([PROMPT.input_ids])).logits[0, -1]
    return row


def alone(model: PreTrainedModel) -> Tensor:
    with applied(model, PINE(), [PROMPT]):
        return logits(model)


def many(model: PreTrainedModel) -> Iterator[Tensor]:
    with applied(model, PINE(), [PROMPT]):
        while True:
            yield logits(model)


def in_context(test: Callable[[], None]) -> None:
    """So that what goes wrong stays in this test."""
    contextvars.Context().run(test)


def test_generators_over_two_models_end_in_any_order() -> None:
    def test() -> None:
        first, second = small_model("first"), small_model("second")
        base, expected = logits(second), alone(second)
        assert not torch.equal(base, expected)
        one, other = many(first), many(second)
        next(one), next(other)
        one.close()  # type: ignore[attr-defined]
        assert torch.equal(next(other), expected)
        other.close()  # type: ignore[attr-defined]
        assert torch.equal(logits(second), base)
        alone(first)

    in_context(test)


def test_a_generator_closed_in_another_thread_leaves_nothing() -> None:
    def test() -> None:
        model = small_model("one")
        base, expected = logits(model), alone(model)
        generator = many(model)
        next(generator)
        failures: list[BaseException] = []

        def close() -> None:
            try:
                generator.close()  # type: ignore[attr-defined]
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=close)
        thread.start()
        thread.join()
        assert not failures
        assert torch.equal(logits(model), base)
        assert torch.equal(alone(model), expected)

    in_context(test)


def test_tasks_on_one_model_are_refused_and_leave_the_other_alone() -> None:
    model = small_model("one")
    base, expected = logits(model), alone(model)

    async def task(passes: int) -> list[Tensor]:
        with applied(model, PINE(), [PROMPT]):
            rows = []
            for _ in range(passes):
                await asyncio.sleep(0)
                rows.append(logits(model))
            return rows

    async def both() -> list[list[Tensor] | BaseException]:
        return await asyncio.gather(task(2), task(6), return_exceptions=True)

    short, long = asyncio.run(both())
    assert isinstance(long, MethodConfigError)
    assert not isinstance(short, BaseException)
    assert all(torch.equal(row, expected) for row in short)
    assert torch.equal(logits(model), base)
    with (
        pytest.raises(MethodConfigError, match="already runs under a method"),
        applied(model, PINE(), [PROMPT]),
        applied(model, PINE(), [PROMPT]),
    ):
        pass
