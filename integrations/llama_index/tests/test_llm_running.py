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
