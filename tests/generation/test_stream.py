"""Streams: the same text in pieces, errors that arrive, and nothing left behind."""

import gc
import threading
import time
from collections.abc import Iterator

import pytest
from transformers import PreTrainedModel

from rag_middle import ContextPrompt, PromptLayout, applied
from rag_middle.errors import MethodConfigError
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import LPES, Method, NoMethod
from tests.contract.running import is_free
from tests.prompts import laid_out


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    deadline = time.monotonic() + 5
    while any(t.name == "rag-middle-stream" for t in threading.enumerate()):
        assert time.monotonic() < deadline, "a stream's thread is still running"
        time.sleep(0.01)


@pytest.fixture
def slow_steps(llama: PreTrainedModel) -> Iterator[list[float]]:
    """Every forward pass takes 20 ms longer; the list grows with each."""
    passes: list[float] = []

    def wait(*_: object) -> None:
        passes.append(time.monotonic())
        time.sleep(0.02)

    with llama.register_forward_pre_hook(wait):
        yield passes


@pytest.mark.parametrize("method", ["none", "pine", "ms_poe", LPES(factors=1.5), "siw"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.one_in(3)
def test_pieces_are_the_text(
    model: RagMiddleModel, prompt: ContextPrompt, method: str | Method, temperature: float
) -> None:
    whole = model.generate(
        prompt, method=method, max_new_tokens=15, temperature=temperature, seed=1
    )
    stream = model.stream(prompt, method=method, max_new_tokens=15, temperature=temperature, seed=1)
    pieces = list(stream)
    assert "".join(pieces) == whole.text == stream.result.text
    assert len(pieces) > 3
    assert all(pieces)
    assert stream.result.token_ids == whole.token_ids
    assert stream.result.usage == whole.usage
    assert stream.result.finish_reason == "length"


def test_pieces_come_while_generation_runs(
    model: RagMiddleModel, prompt: ContextPrompt, slow_steps: list[float]
) -> None:
    stream = model.stream(prompt, max_new_tokens=20)
    next(stream)
    assert len(slow_steps) < 20
    assert stream.result.usage.completion_tokens == 20
    assert len(slow_steps) == 20


def test_an_exception_while_streaming_reaches_the_consumer(
    model: RagMiddleModel, llama: PreTrainedModel, prompt: ContextPrompt
) -> None:
    passes: list[int] = []

    def fail(*_: object) -> None:
        passes.append(1)
        if len(passes) == 4:
            raise ZeroDivisionError("in the fourth pass")

    with llama.register_forward_pre_hook(fail):
        stream = model.stream(prompt, method="pine", max_new_tokens=30)
        with pytest.raises(ZeroDivisionError, match="fourth"):
            list(stream)
        with pytest.raises(ZeroDivisionError):
            stream.result  # noqa: B018
        with pytest.raises(ZeroDivisionError):
            next(stream)
    assert is_free(model.model)
    assert model.generate(prompt, method="pine", max_new_tokens=2).usage.completion_tokens == 2


def test_closing_early_ends_generation_and_frees_the_model(
    model: RagMiddleModel, prompt: ContextPrompt, slow_steps: list[float]
) -> None:
    with model.stream(prompt, method="pine", max_new_tokens=200) as stream:
        first = next(stream)
    assert is_free(model.model)
    assert 0 < len(slow_steps) < 100
    assert stream.result.finish_reason == "cancelled"
    assert stream.result.text.startswith(first)
    stream.close()


def test_a_forgotten_stream_ends(
    model: RagMiddleModel, prompt: ContextPrompt, slow_steps: list[float]
) -> None:
    stream = model.stream(prompt, max_new_tokens=200)
    next(stream)
    del stream
    gc.collect()
    deadline = time.monotonic() + 5
    while not is_free(model.model):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(slow_steps) < 100


def test_a_stream_inside_a_block_of_the_same_thread_is_refused(
    model: RagMiddleModel, prompt: ContextPrompt
) -> None:
    with (
        applied(model.model, NoMethod(), [laid_out(PromptLayout(length=1))]),
        pytest.raises(MethodConfigError, match="Leave the applied"),
    ):
        model.stream(prompt)
