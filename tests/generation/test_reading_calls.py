"""Calls of tools, read through `tokenizer.parse_response` where the tokenizer has a template."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from rag_middle.generation.tool_use import tool_reader
from rag_middle.options import GenerationOptions
from tests.tokenizers import byte_level_bpe

TOOL = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
#: Of the Hermes family, and of none.
HERMES = '{{ tools }}{{ messages }}<tool_call>\n{"name": , "arguments": }\n</tool_call>'
PLAIN = "{{ tools }}{{ messages }}"


def template(content: str = "json") -> dict[str, Any]:
    calls = {
        "open_pattern": r"<use (?P<name>\w+)>",
        "close": "</use>",
        "content": content,
        "repeats": True,
        "transform": {"function": {"name": "{name}", "arguments": "{content}"}},
    }
    return {"start_anchor": "assistant\n", "fields": {"content": {}, "tool_calls": calls}}


def reader(chat_template: str, responses: dict[str, Any] | None) -> Any:
    tokenizer: PreTrainedTokenizerFast = byte_level_bpe(bos=True)
    tokenizer.chat_template = chat_template
    if responses is not None:
        tokenizer.response_template = responses
    return tool_reader(tokenizer, GenerationOptions(tools=[TOOL]))


@pytest.mark.parametrize("chat_template", [HERMES, PLAIN])
def test_the_tokenizers_template_goes_before_a_known_form(chat_template: str) -> None:
    reads = reader(chat_template, template())
    text = 'Look: <use search>{"query": "a"}</use><use search>{"query": "b"}</use>'
    message = reads.message(text, {})
    assert message.content == "Look:"
    assert [call.arguments for call in message.calls] == [{"query": "a"}, {"query": "b"}]
    assert reads.call_start(text, {}) == 0, "only the whole answer can be read"
    assert reads.message("No tools.", {}).content == "No tools."


def test_arguments_in_a_string_are_read() -> None:
    reads = reader(PLAIN, template(content="text"))
    (call,) = reads.message('<use search>{"query": "a"}</use>', {}).calls
    assert call.arguments == {"query": "a"}
    (call,) = reads.message(r'<use search>{"query": "\ud800"}</use>', {}).calls
    assert call.arguments == {"query": "\ufffd"}


@pytest.mark.parametrize(
    "text", ["<use search>no JSON</use>", "<use search>[1]</use>"], ids=["json", "names"]
)
def test_what_cannot_be_read_is_an_invalid_call(text: str) -> None:
    message = reader(PLAIN, template()).message(text, {})
    assert message.calls == ()
    assert [call.text for call in message.invalid] == [text]


def test_where_it_fails_the_known_form_reads() -> None:
    reads = reader(HERMES, {"start_anchor": "x", "fields": {"content": {"content": "json"}}})
    written = '<tool_call>\n{"name": "search", "arguments": {"query": "a"}}\n</tool_call>'
    (call,) = reads.message(written, {0: "<tool_call>"}).calls
    assert (call.name, call.arguments) == ("search", {"query": "a"})
