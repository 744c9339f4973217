"""Requests of many threads at a time, streams left midway among them, and nothing stays behind."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from transformers import LlamaConfig, PreTrainedModel

from rag_middle import ContextPrompt, RagMiddleModel
from rag_middle.methods import LPES
from tests.attacks.hostile import report, tries
from tests.contract.snapshot import snapshot
from tests.tiny_models import build, tiny
from tests.tokenizers import byte_level_bpe

SCALED = LPES(factors=1.5)
METHODS = ("none", "pine", "ms_poe", SCALED, "siw", [SCALED, "siw"], "permutation", "ape")
THREADS = 8


class GaveUpError(Exception):
    """What a consumer of a stream may raise."""


def prompt(number: int) -> ContextPrompt:
    documents = [f"Document about {number * 7 + i}. " * (1 + i % 3) for i in range(2 + number % 3)]
    return ContextPrompt(f"Read these, {number}.\n", documents, f"Which is {number}?")


def whole(model: RagMiddleModel, number: int) -> str:
    options = {"temperature": 0.9 * (number % 3), "seed": number, "max_new_tokens": 5}
    method = METHODS[number % len(METHODS)]
    return model.generate(prompt(number), method=method, **options).text  # type: ignore[arg-type]


def streamed(model: RagMiddleModel, number: int, pieces: int) -> list[str]:
    """The first pieces of a stream that is then left in one of several ways."""
    options = {"temperature": 0.9 * (number % 3), "seed": number, "max_new_tokens": 5}
    method = METHODS[number % len(METHODS)]
    cancel = threading.Event()
    stream = model.stream(prompt(number), method=method, cancel=cancel, **options)  # type: ignore[arg-type]
    read: list[str] = []
    leave = number % 4
    try:
        if leave == 0:
            with stream:
                for piece in stream:
                    read.append(piece)
                    if len(read) == pieces:
                        raise GaveUpError
        for piece in stream:
            read.append(piece)
            if len(read) >= pieces:
                break
    except GaveUpError:
        return read
    if leave == 1:
        stream.close()
    elif leave == 2:
        cancel.set()
    return read  # else forgotten, which ends the generation too


def scored(model: RagMiddleModel, number: int) -> tuple[float, ...]:
    method = METHODS[number % len(METHODS)]
    return tuple(model.score(prompt(number), " fox", method=method).log_probabilities)


def in_batches(model: RagMiddleModel, number: int) -> list[str]:
    prompts = [prompt(number), prompt(number + 1)]
    return [made.text for made in model.batch(prompts, method="pine", max_new_tokens=4)]


KINDS: tuple[Callable[[RagMiddleModel, int], object], ...] = (
    whole,
    lambda model, number: streamed(model, number, 1),
    scored,
    lambda model, number: streamed(model, number, 3),
    in_batches,
    lambda model, number: streamed(model, number, 99),
)


def request(model: RagMiddleModel, number: int) -> object:
    return KINDS[number % len(KINDS)](model, number // len(KINDS))


@pytest.fixture(scope="module")
def network() -> PreTrainedModel:
    return build("threads", tiny(LlamaConfig, vocab_size=len(byte_level_bpe())), "sdpa")


def _streams_end() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("rag-middle"):
            thread.join(60)
            assert not thread.is_alive()


@pytest.mark.slow
def test_requests_of_many_threads_get_what_each_gets_alone(network: PreTrainedModel) -> None:
    model = RagMiddleModel(network, byte_level_bpe())
    others = [model, RagMiddleModel(network, model.tokenizer, method=SCALED)]
    count = tries(48)
    alone = [request(model, number) for number in range(count)]
    _streams_end()
    before, threads = snapshot(network), threading.active_count()
    with ThreadPoolExecutor(THREADS) as pool:
        together = list(pool.map(lambda n: request(others[n % 2], n), range(count)))
    gc.collect()
    _streams_end()
    assert together == alone
    assert snapshot(network) == before
    assert threading.active_count() == threads
    assert request(model, 0) == alone[0]  # no lock is held
    report(f"{count} mixed requests of {THREADS} threads, half of them streams left midway")


@pytest.mark.slow
def test_memory_stays_flat_over_many_calls(network: PreTrainedModel) -> None:
    model = RagMiddleModel(network, byte_level_bpe())

    def run(numbers: range) -> None:
        for number in numbers:
            request(model, 7 * number % 48)

    def held() -> tuple[int, int]:
        _streams_end()
        gc.collect()
        return tracemalloc.get_traced_memory()[0], len(gc.get_objects())

    run(range(48))  # caches of methods and tokenizers fill
    tracemalloc.start()
    try:
        run(range(6))
        bytes_before, objects_before = held()
        count = tries(12)
        run(range(count))
        bytes_after, objects_after = held()
    finally:
        tracemalloc.stop()
    # Caches that fill while memory is traced take up to 100 kB, whatever the number of calls.
    assert bytes_after - bytes_before < 150_000
    assert objects_after - objects_before < max(20, count // 10)
    report(
        f"{count} calls: {bytes_after - bytes_before} bytes more, "
        f"{objects_after - objects_before} objects more"
    )
