"""RagMiddleLLM: completing, chatting, streaming, usage, construction, methods."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.llms.rag_middle import RagMiddleLLM
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from rag_middle import ModelNotFoundError, RagMiddleModel, UnsupportedGenerationError
from rag_middle.methods import PINE, SIW, MsPoE


def test_completing_chatting_and_streaming_agree(llm: RagMiddleLLM, marked: str) -> None:
    whole = llm.complete(marked)
    streamed = list(llm.stream_complete(marked))
    chatted = llm.chat([ChatMessage(marked)])
    chat_streamed = list(llm.stream_chat([ChatMessage(marked)]))

    length = len(llm.rag_middle_model.encode([{"role": "user", "content": marked}]))
    usage = {"prompt_tokens": length, "completion_tokens": 8, "total_tokens": length + 8}
    for response in (whole, streamed[-1], chatted, chat_streamed[-1]):
        assert (response.raw["usage"], response.raw["finish_reason"]) == (usage, "length")
        report = response.raw["rag_middle"]
        assert (report["documents"], report["method"]) == (2, "none")
    assert whole.text
    assert "".join(r.delta for r in streamed) == streamed[-1].text == whole.text
    assert chatted.message.role == MessageRole.ASSISTANT
    assert chatted.message.content == whole.text
    assert "".join(r.delta for r in chat_streamed) == chat_streamed[-1].message.content
    assert chat_streamed[-1].message.content == whole.text


def test_asynchronous_forms_give_what_the_synchronous_ones_give(
    llm: RagMiddleLLM, marked: str
) -> None:
    async def ask() -> list[str]:
        completed = await llm.acomplete(marked)
        chatted = await llm.achat([ChatMessage(marked)])
        streamed = [r async for r in await llm.astream_complete(marked)]
        chat_streamed = [r async for r in await llm.astream_chat([ChatMessage(marked)])]
        return [
            completed.text,
            chatted.message.content or "",
            "".join(r.delta for r in streamed),
            "".join(r.delta for r in chat_streamed),
        ]

    assert set(asyncio.run(ask())) == {llm.complete(marked).text}


@pytest.mark.parametrize("call", ["acomplete", "achat", "astream_complete", "astream_chat"])
def test_the_event_loop_runs_on_while_the_model_generates(
    llm: RagMiddleLLM, network: LlamaForCausalLM, call: str, marked: str
) -> None:
    released = threading.Event()
    heard: list[bool] = []

    async def ask() -> None:
        asyncio.get_running_loop().call_later(0.05, released.set)
        answered = await getattr(llm, call)([ChatMessage(marked)] if "chat" in call else marked)
        if "stream" in call:
            async for _ in answered:
                pass

    def wait(*_: Any) -> None:
        """In the middle of a generation, for what a loop does that runs on."""
        heard.append(released.wait(timeout=5 if all(heard) else 0))

    with network.register_forward_pre_hook(wait):
        asyncio.run(ask())
    assert heard == [True] * 8


def test_an_llm_is_loaded_from_a_folder_and_from_its_own_description(
    saved: Path, marked: str
) -> None:
    llm = RagMiddleLLM(
        model_name=str(saved),
        method="pine",
        max_new_tokens=4,
        model_kwargs={"torch_dtype": torch.float32, "attn_implementation": "eager"},
    )
    assert llm.metadata.model_name == str(saved)
    assert llm.rag_middle_model.model.config._attn_implementation == "eager"
    again = RagMiddleLLM.from_dict(llm.to_dict())
    assert again.complete(marked).text == llm.complete(marked).text


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"method": MsPoE(first_layer=1)},
        {"method": SIW(dense_areas={0: (True,) * 4, 1: (False,) * 4})},
        {"method": ["long_context_reorder", "siw"]},
        {"generate_kwargs": {"temperature": 0.5, "seed": 3, "method": MsPoE(first_layer=1)}},
        {"generate_kwargs": {"no_repeat_ngram_size": 2, "eos_token_id": [3], "logprobs": True}},
    ],
    ids=str,
)
@pytest.mark.one_in(3)
def test_an_llm_survives_its_description_in_json(
    saved: Path, chosen: dict[str, Any], marked: str
) -> None:
    llm = RagMiddleLLM(model_name=str(saved), max_new_tokens=4, system_prompt="Brief.", **chosen)
    for again in (RagMiddleLLM.from_dict(llm.to_dict()), RagMiddleLLM.from_json(llm.to_json())):
        assert again.rag_middle_model.method == llm.rag_middle_model.method
        assert again.system_prompt == "Brief."
        assert again.to_json() == llm.to_json()
    assert again.complete(marked).text == llm.complete(marked).text


def test_a_missing_model_says_so() -> None:
    with pytest.raises(ModelNotFoundError, match="There is no such directory"):
        RagMiddleLLM(model_name="/nowhere/at/all")
    for place in ("/nowhere", Path("/nowhere")):
        with pytest.raises(UnsupportedGenerationError, match="pass model_name='/nowhere'"):
            RagMiddleLLM(model=place)


def test_a_model_shared_with_the_core_keeps_its_method_and_window(
    network: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    shared = RagMiddleModel(network, tokenizer, method="pine", context_window=500)
    llm = RagMiddleLLM(model=shared)
    assert llm.rag_middle_model.model is network
    assert llm.rag_middle_model.method == PINE()
    assert llm.metadata.context_window == 500
    assert RagMiddleLLM(model=shared, method="none").rag_middle_model.method.name == "none"


def test_a_description_keeps_the_tokenizer_of_the_model_it_is_read_with(
    network: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    shared = RagMiddleModel(network, tokenizer)
    again = RagMiddleLLM.from_dict(RagMiddleLLM(model=shared).to_dict(), model=shared)
    assert again.rag_middle_model.tokenizer is tokenizer


def test_method_parameters_and_objects_are_taken(make_llm: Any) -> None:
    by_name = make_llm(method="ms_poe", method_options={"first_layer": 1})
    assert by_name.rag_middle_model.method.first_layer == 1
    assert make_llm(method=PINE()).to_payload()["method"] == "pine"
