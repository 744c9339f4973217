"""RagMiddleLLM with threads and the event loop, and when generating fails."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from llama_index.llms.rag_middle import RagMiddleLLM
from transformers import LlamaForCausalLM

if TYPE_CHECKING:
    from conftest import User


@pytest.mark.parametrize("call", ["acomplete", "achat", "astream_complete", "astream_chat"])
def test_the_event_loop_runs_on_while_the_model_generates(
    llm: RagMiddleLLM, network: LlamaForCausalLM, user: User, call: str, marked: str
) -> None:
    ticked = threading.Event()
    heard: list[bool] = []

    def listen(*_: Any) -> None:
        """In the middle of a generation: does the loop tick?"""
        ticked.clear()
        heard.append(ticked.wait(timeout=5 if all(heard) else 0))

    async def ask() -> None:
        async def tick() -> None:
            while True:
                await asyncio.sleep(0.001)
                ticked.set()

        ticking = asyncio.create_task(tick())
        answered = await getattr(llm, call)(user(marked) if "chat" in call else marked)
        if "stream" in call:
            async for _ in answered:
                pass
        ticking.cancel()

    handle = network.register_forward_pre_hook(listen)
    try:
        asyncio.run(ask())
    finally:
        handle.remove()
    assert heard == [True] * 8


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "call", ["complete", "stream_complete", "achat", "astream_chat", "stream_chat"]
)
def test_what_is_raised_while_generating_reaches_the_caller(
    llm: RagMiddleLLM, network: LlamaForCausalLM, user: User, call: str, marked: str
) -> None:
    calls = 0

    def fail(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise MemoryError("no memory left")

    def ask() -> None:
        answered = getattr(llm, call)(user(marked) if "chat" in call else marked)
        if call.startswith("a"):
            asyncio.run(follow(answered))
        else:
            list(answered)

    async def follow(answered: Any) -> None:
        answered = await answered
        if "stream" in call:
            async for _ in answered:
                pass

    handle = network.register_forward_pre_hook(fail)
    try:
        with pytest.raises(MemoryError, match="no memory left"):
            ask()
    finally:
        handle.remove()
    assert llm.complete("Hello").text
