"""Tools and structured output: what the model is shown, what its calls become."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from langchain.agents import create_agent
from langchain_core.documents import Document
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.messages.ai import add_ai_message_chunks
from langchain_core.retrievers import BaseRetriever
from langchain_core.tools import create_retriever_tool
from pydantic import BaseModel, Field

from langchain_rag_middle import ChatRagMiddle, DocumentPrompt
from rag_middle import ChatTemplateError, RagMiddleModel, UnsupportedGenerationError
from tests.scripted import prefer, write

CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "Nantes"}}\n</tool_call>'


class River(BaseModel):
    """A river."""

    name: str
    length_km: int


class Node(BaseModel):
    """A tree."""

    name: Literal["n"]
    children: list[Node] = Field(max_length=1)


TREE = Node.model_json_schema()


class Shelf(BaseRetriever):
    """Finds everything."""

    documents: list[Document]

    def _get_relevant_documents(self, query: str, **_: Any) -> list[Document]:
        return self.documents


def search(query: str) -> str:
    """Find documents."""
    return query


def chat(model: RagMiddleModel, **settings: Any) -> ChatRagMiddle:
    return ChatRagMiddle(model=model, **{"max_tokens": 100, **settings})


def test_calls_come_back_with_what_the_model_says_beside_them(local: Any, sent: Any) -> None:
    write(local, f"Let me look.\n{CALL}")
    model = chat(local).bind_tools([search])
    answer = model.invoke("Where is Nantes?")
    assert answer.content == "Let me look.\n"
    (call,) = answer.tool_calls
    assert (call["name"], call["args"], len(call["id"] or "")) == ("search", {"query": "Nantes"}, 9)
    assert '"description": "Find documents."' in sent[-1].text

    chunks = list(model.stream("Where is Nantes?"))
    assert "".join(str(chunk.content) for chunk in chunks) == "Let me look.\n"
    assert not any(chunk.tool_call_chunks for chunk in chunks[:-1] if chunk.content)
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert isinstance(whole, AIMessageChunk)
    assert [call["args"] for call in whole.tool_calls] == [{"query": "Nantes"}]


@pytest.mark.parametrize(
    "written",
    [
        CALL[:-20],  # JSON that LangChain completes
        CALL.replace('"Nantes"', "NaN"),  # that it takes as it is
        CALL.replace('"name": "search", ', ""),
    ],
    ids=("cut", "not a number", "no name"),
)
@pytest.mark.one_in(3)
def test_an_invalid_call_is_no_call_in_a_stream_either(local: Any, written: str) -> None:
    write(local, written)
    bound = chat(local, max_tokens=len(written.encode())).bind_tools([search])
    whole = bound.invoke("Where is Nantes?")
    chunks: list[Any] = list(bound.stream("Where is Nantes?"))
    assert not any(chunk.tool_calls for chunk in chunks)
    streamed = add_ai_message_chunks(*chunks)
    for answer in (whole, streamed):
        assert answer.tool_calls == []
        assert len(answer.invalid_tool_calls) == 1
    [expected], [call] = whole.invalid_tool_calls, streamed.invalid_tool_calls
    assert (call["name"], json.loads(call["args"])) == (expected["name"], expected["args"])


def test_an_agent_reads_the_documents_of_its_retriever_under_the_method(
    local: Any, rivers: list[Document], sent: Any
) -> None:
    local.checked_method("pine")  # runs the model, which is told afterwards what to write
    write(local, CALL, "The Loire.")
    tool = create_retriever_tool(
        Shelf(documents=rivers), "search", "Finds.", document_prompt=DocumentPrompt()
    )
    agent = create_agent(chat(local, method="pine"), [tool])
    messages = agent.invoke({"messages": [HumanMessage("Where is Nantes?")]})["messages"]
    assert messages[-1].content == "The Loire."
    used = messages[-1].response_metadata["rag_middle"]
    assert (used["method"], used["applied"], used["documents"]) == ("pine", True, 4)
    assert "<|im_start|>tool\n" in sent[-1].text
    assert sent[-1].text.count("<tool_call>") == 1


@pytest.mark.parametrize("method", ["json_schema", "json_mode", "function_calling"])
@pytest.mark.one_in(3)
def test_structured_output_is_of_the_schema_whatever_the_model_would_write(
    local: Any, method: Any
) -> None:
    prefer(local, '"', "}", " 3", "3")
    model = chat(local, method="pine", on_missing_documents="ignore")
    structured = model.with_structured_output(River, method=method)
    assert structured.invoke("Name a river.") == River(name="", length_km=3)
    assert structured.batch(["One.", "Name another river."]) == [River(name="", length_km=3)] * 2
    raw = model.with_structured_output(River.model_json_schema(), method=method, include_raw=True)
    result = raw.invoke("Name a river.")
    assert result["parsed"] == {"name": "", "length_km": 3}
    assert result["parsing_error"] is None


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
@pytest.mark.parametrize("schema", [Node, TREE, {**TREE, "title": "Tree"}])
@pytest.mark.one_in(3)
def test_recursive_schemas_reach_the_model_whole(local: Any, method: Any, schema: Any) -> None:
    prefer(local, "]", "]}", "}")
    structured = chat(local).with_structured_output(schema, method=method)
    assert Node.model_validate(structured.invoke("Grow.")) == Node(name="n", children=[])


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output_that_is_cut_is_an_error(local: Any, method: Any) -> None:
    prefer(local, "a")
    structured = chat(local, max_tokens=20).with_structured_output(River, method=method)
    with pytest.raises(OutputParserException, match="raise max_tokens"):
        structured.invoke("Name a river.")
    raw = chat(local, max_tokens=20).with_structured_output(River, method=method, include_raw=True)
    assert raw.invoke("Name a river.")["parsing_error"] is not None


def test_what_cannot_be_served_is_refused(local: Any, tiny: Any) -> None:
    with pytest.raises(ChatTemplateError, match="does not show tools"):
        chat(tiny).bind_tools([search]).invoke("Why?")
    with pytest.raises(UnsupportedGenerationError, match="is no tool"):
        chat(local).bind_tools([search], tool_choice="find").invoke("Why?")
    with pytest.raises(UnsupportedGenerationError, match="needs a schema"):
        chat(local).with_structured_output(method="json_schema")
