"""Calls as the families write them, read and forced; templates that do not fit are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rag_middle.tools import FORMATS, InvalidToolCall, call_grammar, format_of

SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Find documents.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}, "k": {"type": "integer"}},
            "required": ["query"],
        },
    },
}
ARGUMENTS = {"query": "Nantes; Loire", "k": 3}
WRITTEN = json.dumps(ARGUMENTS)
DEEPSEEK = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"
DEEPSEEK_END = "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"

#: What the template of a family says of calls, and what its models write.
FAMILIES: dict[str, tuple[str, str, str]] = {
    "qwen-2.5": (
        "Hermes/Qwen",
        'return a json object within <tool_call></tool_call> XML tags:\n<tool_call>\n{"name": '
        '<function-name>, "arguments": <args-json-object>}\n</tool_call>',
        f'<tool_call>\n{{"name": "search", "arguments": {WRITTEN}}}\n</tool_call>',
    ),
    "qwen3-coder": (
        "Qwen3-Coder",
        "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n",
        "<tool_call>\n<function=search>\n<parameter=query>\nNantes; Loire\n</parameter>\n"
        "<parameter=k>\n3\n</parameter>\n</function>\n</tool_call>",
    ),
    "llama-3.1": (
        "Llama 3",
        'Respond in the format {"name": function name, "parameters": dictionary of argument name '
        "and its value}. Environment: ipython <|python_tag|>",
        f'{{"name": "search", "parameters": {WRITTEN}}}',
    ),
    "llama-3.1 with its tag": (
        "Llama 3",
        '{"name": function name, "parameters": dictionary} Environment: ipython <|python_tag|>',
        f'<|python_tag|>{{"name": "search", "parameters": {WRITTEN}}}',
    ),
    "mistral-7b-v0.3": (
        "Mistral",
        "{{ '[TOOL_CALLS] [' }}{{ '[AVAILABLE_TOOLS] [' }}",
        f'[TOOL_CALLS] [{{"name": "search", "arguments": {WRITTEN}, "id": "a1b2c3d4e"}}]',
    ),
    "mistral-small-3.2": (
        "Mistral",
        "{{ '[TOOL_CALLS]' + name + '[CALL_ID]' + id + '[ARGS]' + arguments }}",
        f"[TOOL_CALLS]search[CALL_ID]a1b2c3d4e[ARGS]{WRITTEN}",
    ),
    "deepseek-v3": (
        "DeepSeek",
        f"{{{{ '{DEEPSEEK}' + type + '<｜tool▁sep｜>' + name + '\n```json\n' + arguments }}}}",
        f"{DEEPSEEK}function<｜tool▁sep｜>search\n```json\n{WRITTEN}\n```{DEEPSEEK_END}",
    ),
    "deepseek-v3.1": (
        "DeepSeek",
        f"{{{{ '{DEEPSEEK}' + name + '<｜tool▁sep｜>' + arguments }}}}",
        f"{DEEPSEEK}search<｜tool▁sep｜>{WRITTEN}{DEEPSEEK_END}",
    ),
    "granite-3": (
        "Granite/Phi",
        "When a tool is required, respond only with <|tool_call|> followed by a JSON list of tools",
        f'<|tool_call|>[{{"name": "search", "arguments": {WRITTEN}}}]',
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_are_read_as_the_family_writes_them(family: str) -> None:
    name, template, written = FAMILIES[family]
    form = format_of(template)
    assert form is not None
    assert form.name == name
    message = form.message(written, [SEARCH])
    assert [(call.name, call.arguments) for call in message.calls] == [("search", ARGUMENTS)]
    assert (message.content.strip(), message.invalid) == ("", ())
    # What is said before a call may be streamed, and nothing of the call.
    if name != "Llama 3" or "tag" in family:
        said = f"Let me look.{written}"
        assert form.message(said, [SEARCH]).content == "Let me look."
        assert min(form.call_start(said[:end]) for end in range(12, len(said))) == 12


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_that_is_cut_is_no_call(family: str) -> None:
    _, template, written = FAMILIES[family]
    form = format_of(template)
    assert form is not None
    message = form.message(written[: written.index("Loire")], [SEARCH])
    assert message.calls == ()
    assert [type(call) for call in message.invalid] == [InvalidToolCall]


@pytest.mark.parametrize("family", FAMILIES)
def test_forced_calls_read_back(family: str) -> None:
    _, template, _ = FAMILIES[family]
    form = format_of(template)
    assert form is not None
    if form.forced is None:
        assert form.name == "Qwen3-Coder"  # its arguments are no JSON
        return
    parts = [p if isinstance(p, str) else WRITTEN for p in form.forced("search", template)]
    (call,) = form.message("".join(parts), [SEARCH]).calls
    assert (call.name, call.arguments) == ("search", ARGUMENTS)
    grammar = call_grammar([SEARCH], form, template, dict.fromkeys(form.markers, 7).get)
    markers = [part for part in form.forced("search", template) if part in form.markers]
    assert grammar.count("<[7]>") == len(markers)


def test_several_calls_and_thoughts() -> None:
    form = format_of("<tool_call>")
    assert form is not None
    call = FAMILIES["qwen-2.5"][2]
    message = form.message(f"<think>Shall I write {call}?</think>\n{call}\n{call}", [SEARCH])
    assert len(message.calls) == 2
    assert len({call.id for call in message.calls}) == 2
    assert message.content == f"<think>Shall I write {call}?</think>\n"
    llama = format_of(FAMILIES["llama-3.1"][1])
    assert llama is not None
    one = FAMILIES["llama-3.1"][2]
    assert len(llama.message(f"{one}; {one}", [SEARCH]).calls) == 2


@pytest.mark.parametrize("text", ['{"river": "Loire"}', "{not JSON", "The Loire."])
def test_an_answer_of_llama_that_is_no_call_stays_an_answer(text: str) -> None:
    llama = format_of(FAMILIES["llama-3.1"][1])
    assert llama is not None
    assert llama.message(text, [SEARCH]).content == text


def test_every_format_is_tested_and_others_are_unknown() -> None:
    assert {name for name, _, _ in FAMILIES.values()} == {form.name for form in FORMATS}
    assert format_of("{% for m in messages %}{{ m.content }}{% endfor %}") is None


def test_arguments_in_a_string_are_read() -> None:
    form = format_of("<tool_call>")
    assert form is not None
    written: Any = {"name": "search", "arguments": WRITTEN}
    (call,) = form.message(f"<tool_call>{json.dumps(written)}</tool_call>", [SEARCH]).calls
    assert call.arguments == ARGUMENTS
