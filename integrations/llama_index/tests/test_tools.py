"""Tools: function calling, agents, selectors and objects, on a model that is told what to write."""

import asyncio
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ThinkingBlock, ToolCallBlock
from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.prompts import PromptTemplate
from llama_index.core.selectors import PydanticSingleSelector
from llama_index.core.tools import FunctionTool, ToolMetadata
from llama_index.core.types import PydanticProgramMode
from llama_index.llms.rag_middle import RagMiddleLLM
from llama_index.llms.rag_middle.prompting import chat_messages
from transformers import PreTrainedTokenizerFast

from rag_middle import mark
from tests.tokenizers import HERMES

pytestmark = pytest.mark.thorough


class River(BaseModel):
    """A river."""

    name: str
    length_km: int


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def search(query: str) -> str:
    """Find documents."""
    return "\n".join(map(mark, ("Nantes lies on the Loire.", f"Nothing of {query}.")))


LOIRE = call("River", '{"name": "Loire", "length_km": 1006}')
SEARCH = call("search", '{"query": "Nantes"}')


@pytest.fixture
def llm(make_llm: Any, tokenizer: PreTrainedTokenizerFast) -> RagMiddleLLM:
    tokenizer.chat_template, own = HERMES, tokenizer.chat_template
    yield make_llm(max_new_tokens=100)
    tokenizer.chat_template = own


def test_earlier_thinking_reaches_the_template() -> None:
    answer = ChatMessage("Yes.", role="assistant")
    answer.blocks.insert(0, ThinkingBlock(content="Hm."))
    messages = [ChatMessage("A river?"), answer, ChatMessage("Which?")]
    read = chat_messages(messages, with_tools=True)
    assert [one.get("reasoning_content") for one in read] == [None, "Hm.", None]


def test_calls_come_with_the_message(llm: RagMiddleLLM, said: Any) -> None:
    said(f"Let me look.{SEARCH}")
    assert llm.metadata.is_function_calling_model
    tool = FunctionTool.from_defaults(search)
    response = llm.chat_with_tools([tool], "Where is Nantes?")
    (selected,) = llm.get_tool_calls_from_response(response)
    assert (selected.tool_name, selected.tool_kwargs) == ("search", {"query": "Nantes"})
    assert response.message.content == "Let me look."
    *_, last = llm.stream_chat_with_tools([tool], "Where is Nantes?")
    assert [c.tool_name for c in llm.get_tool_calls_from_response(last)] == ["search"]
    assert "Nantes lies" in llm.predict_and_call([tool], "Where is Nantes?").response


# LlamaIndex's agents look at all attributes of themselves.
@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning")
def test_an_agent_reads_what_its_tool_returns(llm: RagMiddleLLM, said: Any, sent: Any) -> None:
    said(SEARCH, "The Loire.")

    async def ask() -> Any:
        agent = FunctionAgent(tools=[FunctionTool.from_defaults(search)], llm=llm)
        return await agent.run("Where is Nantes?")

    answer = asyncio.run(ask())
    assert answer.response.content == "The Loire."
    assert answer.raw["rag_middle"]["documents"] == 2
    assert [block for block in answer.response.blocks if isinstance(block, ToolCallBlock)] == []


def test_objects_and_selections_are_calls(llm: RagMiddleLLM, said: Any) -> None:
    said(LOIRE)
    prompt = PromptTemplate("Name a river of {country}.")
    assert llm.structured_predict(River, prompt, country="France").length_km == 1006
    chat = llm.as_structured_llm(River).chat([ChatMessage(role="user", content="Which?")])
    assert chat.raw == River(name="Loire", length_km=1006)
    said(call("SingleSelection", '{"index": 2, "reason": "rivers"}'))
    selector = PydanticSingleSelector.from_defaults(llm=llm)
    choices = [ToolMetadata(name=name, description=name) for name in ("towns", "rivers")]
    assert selector.select(choices, "Where is Nantes?").ind == 1


# LlamaIndex's own: it writes objects by a method that pydantic has renamed.
@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")
def test_streamed_objects_are_forced_calls_too(llm: RagMiddleLLM, said: Any, sent: Any) -> None:
    async def collected(stream: Any) -> list[Any]:
        return [item async for item in await stream]

    said(LOIRE)
    loire = River(name="Loire", length_km=1006)
    prompt = PromptTemplate("Name a river.")
    messages = [ChatMessage(role="user", content="Which?")]
    assert list(llm.stream_structured_predict(River, prompt)) == [loire]
    assert asyncio.run(collected(llm.astream_structured_predict(River, prompt))) == [loire]
    responses = llm.as_structured_llm(River).stream_chat(messages)
    assert [response.raw for response in responses] == [loire]
    assert [prompt.options["tool_choice"] for prompt in sent] == ["any"] * 3


def test_objects_as_text_have_their_form_where_the_model_calls_tools_too(
    make_llm: Any, llm: RagMiddleLLM, said: Any, sent: Any
) -> None:
    said('{"name": "Loire", "length_km": 1006}')
    in_text = make_llm(max_new_tokens=100, pydantic_program_mode=PydanticProgramMode.LLM)
    assert in_text.metadata.is_function_calling_model
    prompt = PromptTemplate("Name a river.")
    assert in_text.structured_predict(River, prompt).name == "Loire"
    assert [prompt.options["response_format"]["type"] for prompt in sent] == ["json_schema"]
