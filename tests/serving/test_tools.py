"""Tools and structured output over HTTP, as OpenAI's clients ask for them."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rag_middle import mark
from rag_middle.generation import RagMiddleModel
from tests import scripted
from tests.serving.conftest import Served, serving
from tests.tiny_models import speaking
from tests.tokenizers import HERMES, byte_level_bpe

pytestmark = pytest.mark.thorough

CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "Nantes"}}\n</tool_call>'
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Find documents.",
        "parameters": {
            "type": "object",
            "properties": {"deep": {"type": "boolean"}},
            "required": ["deep"],
        },
    },
}
QUESTION: Any = {"role": "user", "content": "Where is Nantes?"}
SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
FORM: Any = {"type": "json_schema", "json_schema": {"name": "number", "schema": SCHEMA}}

Write = Callable[..., None]


@pytest.fixture(scope="module")
def local() -> RagMiddleModel:
    tokenizer = byte_level_bpe(chat_template=HERMES)
    return speaking("tools over HTTP", tokenizer, max_position_embeddings=4096)


@pytest.fixture(scope="module")
def served(local: RagMiddleModel) -> Iterator[Served]:
    with serving(local, ("none", "pine")) as server:
        yield server


@pytest.fixture
def write(local: RagMiddleModel) -> Iterator[Write]:
    """Has the model write a text, in every row and after every prompt."""
    handles: list[Any] = []

    def say(text: str = "") -> None:
        for handle in handles:
            handle.remove()
        handles[:] = scripted.write(local, text) if text else ()

    yield say
    say()


def ask(served: Served, **body: Any) -> Any:
    body = {"messages": [QUESTION], "max_tokens": 120, **body}
    return served.client.chat.completions.create(model="tested", **body)


def test_a_call_comes_back_in_openais_form(served: Served, write: Write) -> None:
    write(f"Let me look.\n{CALL}")
    for count in (1, 2):
        answer = ask(served, tools=[TOOL], n=count)
        assert len(answer.choices) == count
        for choice in answer.choices:
            assert choice.finish_reason == "tool_calls"
            assert choice.message.content == "Let me look.\n"
            [call] = choice.message.tool_calls
            assert (call.type, call.function.name) == ("function", "search")
            assert json.loads(call.function.arguments) == {"query": "Nantes"}
            assert call.id
    write(CALL)
    assert ask(served, tools=[TOOL]).choices[0].message.content is None


def test_a_streamed_call_is_whole_in_its_last_chunk(served: Served, write: Write) -> None:
    write(f"Let me look.\n{CALL}")
    chunks = [chunk.choices[0] for chunk in ask(served, tools=[TOOL], stream=True)]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == "Let me look.\n"
    assert not any(chunk.delta.tool_calls for chunk in chunks[:-1])
    [call] = chunks[-1].delta.tool_calls
    assert (call.index, call.function.arguments) == (0, '{"query": "Nantes"}')
    assert chunks[-1].finish_reason == "tool_calls"


def test_a_call_that_is_cut_stays_text(served: Served, write: Write) -> None:
    write(CALL)
    [choice] = ask(served, tools=[TOOL], max_tokens=20).choices
    assert choice.message.tool_calls is None
    assert choice.message.content.strip()
    assert choice.message.content in CALL
    assert choice.finish_reason == "length"


def test_results_of_tools_are_read_with_their_documents(served: Served, write: Write) -> None:
    write("On the Loire.")
    called = {
        "id": "a1",
        "type": "function",
        "function": {"name": "search", "arguments": '{"query": "Nantes"}'},
    }
    found = mark("Nantes lies on the Loire.") + mark("Lyon lies on the Rhône.")
    messages: Any = [
        QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "a1", "content": found},
    ]
    body = {"model": "tested", "messages": messages, "tools": [TOOL], "method": "pine"}
    answer = served.post({**body, "max_tokens": 30}).json()
    assert answer["choices"][0]["message"]["content"] == "On the Loire."
    assert answer["rag_middle"]["documents"] == 2
    assert answer["rag_middle"]["applied"] is True
    # The prompt is the one that the model itself makes of it.
    expected = served.model.generate(messages, method="pine", tools=[TOOL], max_new_tokens=30)
    assert answer["usage"]["prompt_tokens"] == expected.usage.prompt_tokens
    # Before the first call there are none yet, and that is no omission.
    assert served.post({**body, "messages": messages[:1]}).status_code == 200
    # Without tools in the request, the result is told by the user.
    assert (
        served.post({**body, "tools": [], "max_tokens": 30}).json()["rag_middle"]["documents"] == 2
    )


def test_a_call_without_a_word_ends_no_turn_and_an_empty_answer_does(served: Served) -> None:
    called = {"id": "a1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    answer: Any = {"role": "assistant", "content": ""}
    call: Any = {**answer, "tool_calls": [called]}
    told: Any = {"role": "tool", "tool_call_id": "a1", "content": mark("Lyon lies on the Rhône.")}
    asked: Any = {"role": "user", "content": mark("Nantes lies on the Loire.")}
    apart: Any = {"role": "user", "content": f"{mark('One.')} Q: {mark('Two.')}"}

    def read(messages: list[Any], **body: Any) -> Any:
        body = {"model": "tested", "max_tokens": 1, "messages": messages, **body}
        return served.post(body).json()

    for tools in ([], [TOOL]):
        assert read([QUESTION, call, told, call, told], tools=tools)["rag_middle"]["documents"] == 2
    assert read([asked, answer, asked])["rag_middle"]["documents"] == 1
    no_calls = {**answer, "tool_calls": []}
    assert read([asked, no_calls, asked], tools=[TOOL])["rag_middle"]["documents"] == 1
    for choice in ("auto", "none"):
        turn = read([asked, call, told], tools=[TOOL], tool_choice=choice)
        assert turn["rag_middle"]["documents"] == 2
    assert "stand together" in read([apart, call, told], tools=[TOOL])["error"]["message"]


def test_tools_that_must_not_be_called_are_not_shown(served: Served) -> None:
    plain = ask(served, max_tokens=2).usage.prompt_tokens
    assert ask(served, max_tokens=2, tools=[TOOL], tool_choice="none").usage.prompt_tokens == plain
    assert ask(served, max_tokens=2, tools=[TOOL]).usage.prompt_tokens > plain


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "search"}}], ids=str
)
def test_a_forced_call_keeps_to_the_tools_schema(served: Served, choice: Any) -> None:
    answer = ask(served, tools=[TOOL], tool_choice=choice, parallel_tool_calls=False)
    [call] = answer.choices[0].message.tool_calls
    assert call.function.name == "search"
    assert isinstance(json.loads(call.function.arguments)["deep"], bool)
    assert answer.choices[0].finish_reason == "tool_calls"


def test_answers_of_a_form_share_batches_and_parse(served: Served) -> None:
    answer = ask(served, response_format=FORM, n=2, temperature=1.0, seed=3)
    assert {json.loads(choice.message.content)["n"] for choice in answer.choices} <= {1, 2}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"tools": [{"name": "f"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"response_format": "json"}, "response_format"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_name(served: Served, body: Any, field: str) -> None:
    response = served.post({"model": "tested", "messages": [QUESTION], **body})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field
