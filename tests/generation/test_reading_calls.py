"""Calls of tools, read through `tokenizer.parse_response` where the tokenizer has a template."""

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from rag_middle.errors import ChatTemplateError
from rag_middle.generation.tool_use import reads_calls, tool_reader
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


#: As GLM 4.5 writes calls, and as Apriel does: with words of the Hermes family, otherwise.
OTHERS = {
    "glm": "<tool_call>{{ f.name }}{% for k, v in f.arguments.items() %}\n<arg_key>{{ k }}"
    "</arg_key>\n<arg_value>{{ v }}</arg_value>{% endfor %}\n</tool_call>",
    "apriel": '<tool_calls>[{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}]'
    "</tool_calls>{# within <tool_call></tool_call> tags #}",
}
SHOWN = (
    "{{ tools | tojson }}{% for m in messages %}<|im_start|>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{% set f = c.function %}CALL{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize("family", OTHERS)
def test_a_template_that_writes_calls_otherwise_than_its_words_tell_is_refused(family: str) -> None:
    tokenizer: PreTrainedTokenizerFast = byte_level_bpe()
    tokenizer.chat_template = SHOWN.replace("CALL", OTHERS[family])
    assert not reads_calls(tokenizer)
    with pytest.raises(ChatTemplateError, match="none of the known forms"):
        tool_reader(tokenizer, GenerationOptions(tools=[TOOL]))
    hermes = '<tool_call>\n{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
    tokenizer.chat_template = SHOWN.replace("CALL", f"{hermes}\n</tool_call>")
    assert reads_calls(tokenizer)
