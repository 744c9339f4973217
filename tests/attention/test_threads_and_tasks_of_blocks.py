"""A method acts in the thread that opened its block, as long as it is open, and nowhere else."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig

from rag_middle import ContextPrompt, MethodConfigError, RagMiddleModel, applied
from rag_middle.attention import seam
from rag_middle.generation.following import Follower
from rag_middle.methods import LPES, PINE, Method
from rag_middle.tokens import encode
from tests.contract.running import in_thread
from tests.tiny_models import build, tiny
from tests.tokenizers import byte_level_bpe

T = TypeVar("T")

TOKENIZER = byte_level_bpe()
TEXT = ContextPrompt("", ["the fox", "a river", "is blue"], "Which?")
PROMPT = encode(TOKENIZER, TEXT, template="raw")
MODEL: Any = build("of threads", tiny(LlamaConfig, vocab_size=len(TOKENIZER)), "sdpa")


@torch.no_grad()
def logits() -> Tensor:
    row: Tensor = MODEL(input_ids=torch.tensor([PROMPT.input_ids])).logits[0, -1]
    return row


PLAIN = logits()


def while_another_thread_has_a_block(run: Callable[[], T]) -> T:
    """What comes of `run` between two passes of a block in another thread, which go well."""
    open_, done = threading.Event(), threading.Event()

    def other() -> bool:
        with applied(MODEL, PINE(), [PROMPT]):
            first = logits()
            open_.set()
            done.wait(30)
            return torch.equal(first, logits())

    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(other()))
    thread.start()
    open_.wait(30)
    try:
        return run()
    finally:
        done.set()
        thread.join()
        assert answers == [True]


def block() -> Iterator[Tensor]:
    with applied(MODEL, PINE(), [PROMPT]):
        yield logits()


def test_a_block_that_another_thread_ends_leaves_nothing_to_its_own() -> None:
    def test() -> None:
        blocks = block()
        assert not torch.equal(next(blocks), PLAIN)
        in_thread(blocks.close)  # type: ignore[attr-defined]
        assert not seam.handlers_in_force()
        assert torch.equal(while_another_thread_has_a_block(logits), PLAIN)

    contextvars.Context().run(test)


def test_a_context_copied_in_a_block_is_outside_when_it_has_ended() -> None:
    with applied(MODEL, PINE(), [PROMPT]):
        under, copied = logits(), contextvars.copy_context()
        assert torch.equal(copied.run(logits), under)
    assert torch.equal(while_another_thread_has_a_block(lambda: copied.run(logits)), PLAIN)


def test_a_thread_that_takes_the_context_of_a_block_is_outside() -> None:
    with applied(MODEL, PINE(), [PROMPT]):
        logits()
        copied = contextvars.copy_context()
        assert torch.equal(in_thread(lambda: copied.run(logits)), PLAIN)


def test_text_that_goes_to_an_event_loop_takes_no_method_with_it() -> None:
    """``call_soon_threadsafe`` runs what it is given in the context of the request."""
    model = RagMiddleModel(MODEL, TOKENIZER, method="pine", self_check=False)
    expected = model.generate(TEXT, max_new_tokens=8).token_ids

    async def test() -> None:
        loop, tasks = asyncio.get_running_loop(), list[asyncio.Task[Tensor]]()

        def look() -> None:
            tasks.append(loop.create_task(asyncio.to_thread(logits)))

        follower = Follower(on_text=lambda *_: [loop.call_soon_threadsafe(look)].clear())
        call = {"max_new_tokens": 8, "followers": [follower]}
        (generation,) = await asyncio.to_thread(lambda: model.batch([TEXT], **call))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert generation.token_ids == expected
        assert tasks
        assert all(torch.equal(seen, PLAIN) for seen in await asyncio.gather(*tasks))

    asyncio.run(test())


@torch.no_grad()
def tokens(method: Method) -> Iterator[int]:
    """Generated in a block, as a server may read it: each token in a thread of its pool."""
    with applied(MODEL, method, [PROMPT]):
        ids, cache = torch.tensor([PROMPT.input_ids]), None
        while True:
            output = MODEL(input_ids=ids, past_key_values=cache, use_cache=True)
            ids, cache = output.logits[:, -1:].argmax(-1), output.past_key_values
            yield int(ids)


@pytest.mark.parametrize("method", [PINE(), LPES(factors=(1.0, 1.3, 1.9))])
@pytest.mark.parametrize("elsewhere", [in_thread, contextvars.Context().run])
def test_nobody_goes_on_without_the_method_unnoticed(
    method: Method, elsewhere: Callable[[Callable[[], Any]], Any]
) -> None:
    def test() -> None:
        generated = tokens(method)
        next(generated)
        with pytest.raises(MethodConfigError, match="another thread or task"):
            elsewhere(lambda: next(generated))
        assert torch.equal(logits(), PLAIN)

    contextvars.Context().run(test)


def passes() -> Iterator[Tensor]:
    with applied(MODEL, PINE(), [PROMPT]):
        yield logits()
        yield logits()


def test_a_block_that_went_on_in_another_thread_says_so_at_its_end() -> None:
    blocks = passes()
    contextvars.Context().run(next, blocks)
    assert torch.equal(in_thread(lambda: next(blocks)), PLAIN)
    with pytest.warns(UserWarning, match="ends in another thread or task"):
        assert in_thread(lambda: next(blocks, None)) is None


@pytest.mark.filterwarnings("error")
def test_a_block_bears_other_threads_and_ends_in_another_without_a_word() -> None:
    with applied(MODEL, PINE(), [PROMPT]):
        logits()
        in_thread(logits)
    blocks = block()
    contextvars.Context().run(next, blocks)
    assert in_thread(lambda: next(blocks, None)) is None


def test_a_pass_under_way_elsewhere_bears_that_the_block_ends() -> None:
    """Its hooks were listed before, and are then called without keyword arguments."""
    reached, ended, here = threading.Event(), threading.Event(), threading.get_ident()

    def wait(*_: object) -> None:
        if threading.get_ident() != here:
            reached.set()
            ended.wait(30)

    for module in (MODEL, MODEL.model, MODEL.model.layers[0].self_attn):
        waiting = module.register_forward_pre_hook(wait)
        reached.clear()
        ended.clear()
        with ThreadPoolExecutor() as pool:
            with applied(MODEL, PINE(), [PROMPT]):
                logits()
                running = pool.submit(logits)
                assert reached.wait(30)
            ended.set()
            assert torch.equal(running.result(), PLAIN)
        waiting.remove()
