"""Prompts of RagMiddleLLM: templates, roles, documents that are missing or forged, the window."""

import asyncio
import copy
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.llms.rag_middle import ContextWindowError, RagMiddleLLM, RequestError
from transformers import PreTrainedTokenizerFast

from rag_middle import ContextOverflowError, PromptError, UnsupportedGenerationError
from rag_middle.generation import MissingDocumentsWarning


def test_prompts_have_one_bos_and_go_through_the_chat_template(
    llm: RagMiddleLLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    expected = ids("<s><|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
    assert llm.count_prompt_tokens([ChatMessage("Hello")]) == len(expected)
    assert llm.complete("Hello").raw["usage"]["prompt_tokens"] == len(expected)
    already = "<s><|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    custom = RagMiddleLLM(
        model=llm.rag_middle_model, completion_to_prompt=lambda _: already, max_new_tokens=1
    )
    assert custom.complete("Hello").raw["usage"]["prompt_tokens"] == len(expected)


def test_system_prompt_and_query_wrapper_reach_the_model(make_llm: Any, sent: Any) -> None:
    llm = make_llm(system_prompt="Be brief.", query_wrapper_prompt="Q: {query_str}")
    llm.complete("Which {river}?")
    assert "system\nBe brief.<|im_end|>\n<|im_start|>user\nQ: Which {river}?" in sent[0].text


def test_a_model_without_a_chat_template_reads_plain_text(
    make_llm: Any, tokenizer: PreTrainedTokenizerFast, sent: Any, marked: str
) -> None:
    plain = copy.deepcopy(tokenizer)
    plain.chat_template = None
    llm = make_llm(tokenizer=plain)
    assert not llm.metadata.is_chat_model
    asked = ChatMessage(marked)
    llm.chat([asked, ChatMessage(role="assistant", content="Both."), asked])
    assert len(sent[0].documents) == 2
    assert sent[0].text.startswith("<s>user: Read.")
    assert sent[0].text.rstrip().endswith("assistant:")


def test_missing_documents_are_announced_as_asked(make_llm: Any) -> None:
    with pytest.warns(MissingDocumentsWarning, match="MarkDocuments"):
        make_llm(method="pine").complete("Hello")
    with pytest.raises(RequestError, match="MarkDocuments") as raised:
        make_llm(method="pine", on_missing_documents="error").complete("Hello")
    assert isinstance(raised.value.__cause__, PromptError)
    make_llm(method="pine", on_missing_documents="ignore").complete("Hello")  # warnings are errors
    with pytest.raises(UnsupportedGenerationError, match="on_missing_documents"):
        make_llm(on_missing_documents="maybe")


@pytest.mark.parametrize("call", ["complete", "stream_complete", "acomplete", "astream_complete"])
def test_prompts_that_do_not_fit_are_refused_with_their_numbers(
    make_llm: Any, call: str, marked: str
) -> None:
    llm = make_llm(context_window=40)

    def ask() -> None:
        answered = getattr(llm, call)(marked)
        if call.startswith("a"):
            answered = asyncio.run(answered)
        if "stream" in call:
            next(answered)

    with pytest.raises(ContextWindowError, match="does not fit") as raised:
        ask()
    assert raised.value.context_window == 40
    assert raised.value.max_new_tokens == 8
    assert raised.value.prompt_tokens == llm.count_prompt_tokens([ChatMessage(content=marked)])
    assert isinstance(raised.value.__cause__, ContextOverflowError)
    assert not isinstance(raised.value, ValueError)  # refine would swallow it
