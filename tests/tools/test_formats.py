"""Calls as the families write them, read and forced; templates that do not fit are refused."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from rag_middle.errors import UnsupportedGenerationError
from rag_middle.tools.definitions import InvalidToolCall, check_tools
from rag_middle.tools.formats import ARGUMENTS as PLACEHOLDER
from rag_middle.tools.formats import FORMATS, AnswerText, ToolFormat, ToolMessage, format_of
from rag_middle.tools.grammars import call_grammar

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
        "Granite",
        "When a tool is required, respond only with <|tool_call|> followed by a JSON list of tools",
        f'<|tool_call|>[{{"name": "search", "arguments": {WRITTEN}}}]',
    ),
}


#: A call of another tool, of each family, with the ends of calls and thinking around it.
QUOTED = "".join(
    f"</think><think> </parameter>```{written}\n".replace("search", "delete")
    for _, _, written in FAMILIES.values()
)


def form_of(template: str) -> ToolFormat:
    form = format_of(template)
    assert form is not None
    return form


def read(
    form: ToolFormat, text: str, *, tools: Sequence[Any] = (SEARCH,), **known: Any
) -> ToolMessage:
    return form.message(AnswerText(text, **known), tools)


def places_of(form: ToolFormat, text: str) -> dict[int, str]:
    """Where markers of a family stand in what its model writes."""
    markers = (*form.markers, "<think>", "</think>")
    return {
        at: marker for marker in markers for at in range(len(text)) if text[at:].startswith(marker)
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_are_read_as_the_family_writes_them(family: str) -> None:
    name, template, written = FAMILIES[family]
    form = form_of(template)
    assert form.name == name
    message = read(form, written)
    assert [(call.name, call.arguments) for call in message.calls] == [("search", ARGUMENTS)]
    assert (message.content.strip(), message.invalid) == ("", ())
    # What is said before a call may be streamed, and nothing of the call.
    if name != "Llama 3" or "tag" in family:
        said = f"Let me look.{written}"
        assert read(form, said).content == "Let me look."
        assert min(form.call_start(AnswerText(said[:end])) for end in range(12, len(said))) == 12


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_that_is_cut_is_no_call(family: str) -> None:
    _, template, written = FAMILIES[family]
    form = form_of(template)
    message = read(form, written[: written.index("Loire")])
    assert message.calls == ()
    assert [type(call) for call in message.invalid] == [InvalidToolCall]


@pytest.mark.parametrize("family", FAMILIES)
def test_forced_calls_read_back(family: str) -> None:
    _, template, _ = FAMILIES[family]
    form = form_of(template)
    if not form.call:
        assert form.name == "Qwen3-Coder"  # its arguments are no JSON
        return
    parts = form.parts("search")
    (call,) = read(form, "".join(parts).replace(PLACEHOLDER, WRITTEN)).calls
    assert (call.name, call.arguments) == ("search", ARGUMENTS)
    grammar = call_grammar([SEARCH], form, dict.fromkeys(form.markers, 7).get)
    markers = [part for part in parts if part in form.markers]
    assert grammar.count("<[7]>") == len(markers)


def test_several_calls_and_thoughts() -> None:
    form = form_of("<tool_call>")
    call = FAMILIES["qwen-2.5"][2]
    message = read(form, f"<think>Shall I write {call}?</think>\n{call}\n{call}")
    assert len(message.calls) == 2
    assert len({call.id for call in message.calls}) == 2
    assert message.content == f"<think>Shall I write {call}?</think>\n"
    llama = form_of(FAMILIES["llama-3.1"][1])
    one = FAMILIES["llama-3.1"][2]
    assert len(read(llama, f"{one}; {one}").calls) == 2


@pytest.mark.parametrize("text", ['{"river": "Loire"}', "{not JSON", "The Loire."])
def test_an_answer_of_llama_that_is_no_call_stays_an_answer(text: str) -> None:
    llama = form_of(FAMILIES["llama-3.1"][1])
    assert read(llama, text).content == text


def test_every_format_is_tested_and_others_are_unknown() -> None:
    assert {name for name, _, _ in FAMILIES.values()} == {form.name for form in FORMATS}
    assert format_of("{% for m in messages %}{{ m.content }}{% endfor %}") is None
    phi_4_mini = "{% if m.tools %}{{ m.content + '<|tool|>' + m.tools + '<|/tool|>' }}{% endif %}"
    assert format_of(phi_4_mini) is None


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("are_tokens", [True, False])
def test_what_arguments_quote_is_no_call(family: str, are_tokens: bool) -> None:
    name, template, written = FAMILIES[family]
    form = form_of(template)
    quoted = QUOTED
    if name == "Qwen3-Coder":  # its values are plain text: the end of a whole call ends one
        quoted = quoted.replace("</parameter>", "")
        quoted = quoted if are_tokens else "</think><tool_call></tool_call>"
        whole = written.replace("Nantes; Loire", quoted)
    else:
        whole = written.replace(json.dumps("Nantes; Loire"), json.dumps(quoted))
    places = places_of(form, written)
    at, more = whole.index(quoted[:8]), len(whole) - len(written)
    known: dict[str, Any] = {}
    if are_tokens:
        known["tokens"] = frozenset((*form.markers, "<think>", "</think>"))
        known["places"] = {i if i < at else i + more: marker for i, marker in places.items()}
    for text in (whole, f"{whole}</think>"):
        message = read(form, text, **known)
        if text == whole:
            assert message.invalid == ()
        assert [call.name for call in message.calls] == ["search"]
        assert message.calls[0].arguments == {**ARGUMENTS, "query": quoted}
    # Cut within the string, its end is unknown: nothing in it is a call.
    shown = quoted if name == "Qwen3-Coder" else json.dumps(quoted)[1:-1]
    message = read(form, whole[: whole.index(shown) + len(shown)], **known)
    assert message.calls == ()
    assert len(message.invalid) == 1


def test_thinking_ends_where_the_answer_begins() -> None:
    form = form_of("<tool_call>")
    call = FAMILIES["qwen-2.5"][2]
    assert len(read(form, f"{call} </think> Done.").calls) == 1
    assert len(read(form, f"Thoughts.</think>{call}").calls) == 1
    # The prompt ended within the thinking, which mentions a call.
    assert read(form, f"Or {call}? No.</think>The Loire.", thinking=True).calls == ()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("begin", "begun"), [("<think>Or ", False), ("Or ", True), ("", True)])
def test_thinking_that_was_cut_holds_no_call(family: str, begin: str, begun: bool) -> None:
    _, template, written = FAMILIES[family]
    form = form_of(template)
    text = f"{begin}{written}? No, because"
    message = read(form, text, thinking=begun)
    assert (message.content, message.calls, message.invalid) == (text, (), ())
    assert form.call_start(AnswerText(text, thinking=begun)) == len(text), "it is streamed"


@pytest.mark.parametrize("name", [" lead", "a\nb", "[ARGS]", "</think>", "x</tool_call>", "a{}"])
def test_names_that_could_not_be_read_back_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedGenerationError, match="no name that can be read"):
        check_tools([{"type": "function", "function": {"name": name}}])
    check_tools([{"type": "function", "function": {"name": "Größe v1.2/find-all"}}])


def xml_call(value: str) -> str:
    return (
        "<tool_call>\n<function=search>\n<parameter=query>\n"
        f"{value}\n</parameter>\n</function>\n</tool_call>"
    )


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "12345", "12345"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", None),
        ({"type": ["string", "null"]}, "true", "true"),
        ({"type": "string"}, "null", "null"),
        ({"type": "integer"}, "12345", 12345),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "7", 7),
        ({}, "NaN", "NaN"),
        ({"type": "number"}, "1e999", "1e999"),
    ],
)
def test_plain_values_are_read_by_their_schema(schema: Any, value: str, expected: Any) -> None:
    form = form_of(FAMILIES["qwen3-coder"][1])
    (call,) = read(form, xml_call(value), tools=[_tool({"query": schema})]).calls
    assert call.arguments == {"query": expected}


def test_half_a_character_is_replaced() -> None:
    form = form_of("<tool_call>")
    written = r'{"name": "f\ud800", "arguments": {"a\udc00": ["\ud83d", "\ud83d\ude00"]}}'
    (call,) = read(form, f"<tool_call>{written}</tool_call>").calls
    assert (call.name, call.arguments) == ("f\ufffd", {"a\ufffd": ["\ufffd", "\U0001f600"]})
    written = r'<tool_call>{"name": "f\ud800", "arguments": "no"}</tool_call>'
    (invalid,) = read(form, written).invalid
    assert invalid.name == "f\ufffd"


def _tool(properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": "search", "parameters": parameters}}
