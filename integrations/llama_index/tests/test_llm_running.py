"""RagMiddleLLM and the event loop."""

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
    released = threading.Event()
    heard: list[bool] = []

    async def ask() -> None:
        asyncio.get_running_loop().call_later(0.05, released.set)
        answered = await getattr(llm, call)(user(marked) if "chat" in call else marked)
        if "stream" in call:
            async for _ in answered:
                pass

    def wait(*_: Any) -> None:
        """In the middle of a generation, for what a loop does that runs on."""
        heard.append(released.wait(timeout=5 if all(heard) else 0))

    with network.register_forward_pre_hook(wait):
        asyncio.run(ask())
    assert heard == [True] * 8
