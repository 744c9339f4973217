"""The component on its own."""

import asyncio
from typing import Any

import pytest
from haystack import Document
from haystack.components.generators.utils import print_streaming_chunk
from haystack.core.serialization import allow_deserialization_module
from haystack.dataclasses import ChatMessage, ImageContent, StreamingChunk
from haystack.tools import create_tool_from_function
from haystack.utils import ComponentDevice, Secret
from haystack_integrations.components.generators.rag_middle import RagMiddleChatGenerator

from rag_middle import (
    MarkerError,
    MethodConfigError,
    PromptError,
    RagMiddleModel,
    UnknownNameError,
    UnsupportedGenerationError,
    mark,
)
from rag_middle.methods import LPES, SIW
from tests.applications.world import ANSWER, QUESTION

CALL = '<tool_call>\n{"name": "price_of", "arguments": {"name": "Glenmoor"}}\n</tool_call>'


def price_of(name: str) -> str:
    """The price of a thing."""
    return f"The price of {name} is $919."


def prompt(question: str) -> list[ChatMessage]:
    return [ChatMessage.from_user(f"Question: {question}\nAnswer:")]


# -- calls --------------------------------------------------------------------------------------


def test_chunks_make_up_the_reply(
    generator: RagMiddleChatGenerator, documents: list[Document]
) -> None:
    chunks: list[StreamingChunk] = []
    [reply] = generator.run(
        prompt(QUESTION), documents=documents, streaming_callback=chunks.append
    )["replies"]
    assert reply.text == ANSWER == "".join(chunk.content for chunk in chunks)
    assert [chunk.start for chunk in chunks] == [True, *[False] * (len(chunks) - 1)]
    assert chunks[-1].finish_reason == reply.meta["finish_reason"] == "stop"
    assert chunks[-1].meta["usage"] == reply.meta["usage"]
    source = chunks[0].component_info
    assert source is not None
    assert source.type.endswith("RagMiddleChatGenerator")
    assert reply.meta["usage"]["completion_tokens"] == len(chunks)  # and the end token


@pytest.mark.anyio
async def test_the_event_loop_is_free_and_cancelling_ends_the_generation(writing: Any) -> None:
    generator = writing("on and on " * 400, generation_kwargs={"max_new_tokens": 1000})
    task = asyncio.create_task(generator.run_async("Go on."))
    for _ in range(5):  # the loop turns while the model writes
        await asyncio.sleep(0.01)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # The next call waits for the model: it would time out behind a thousand tokens.
    options = {"max_new_tokens": 1}
    async with asyncio.timeout(5):
        assert (await generator.run_async("Again.", generation_kwargs=options))["replies"]


def test_scores_decide_which_documents_do_not_fit(
    model_name: str, documents: list[Document]
) -> None:
    generator = RagMiddleChatGenerator(
        model_name,
        generation_kwargs={"max_new_tokens": 24, "on_overflow": "drop_documents"},
        model_kwargs={"context_window": 120},
    )
    ranked = [
        Document(id=d.id, content=d.content, meta=d.meta, score=float(index))
        for index, d in enumerate(documents)
    ]
    [reply] = generator.run(prompt(QUESTION), documents=ranked)["replies"]
    assert reply.text == ANSWER
    dropped = reply.meta["rag_middle"]["dropped_documents"]
    assert [entry["id"] for entry in dropped] == [d.id for d in documents[: len(dropped)]]
    assert dropped


def test_metadata_stands_before_the_text_where_it_is_named(
    loaded: RagMiddleModel, sent: Any
) -> None:
    options: Any = {"meta_fields": ["title", "year"], "generation_kwargs": {"max_new_tokens": 1}}
    generator = RagMiddleChatGenerator(loaded, **options)
    rose = Document(content="It is red.", meta={"title": "Rose", "year": 0})
    generator.run("Which colour?", documents=[rose, Document(content="x")])
    assert sent[0].documents == ["Rose\n0\nIt is red.", "x"]


# -- tools --------------------------------------------------------------------------------------


def test_tools_are_called_and_their_answers_read(writing: Any, capsys: Any) -> None:
    tools = [create_tool_from_function(price_of)]
    generator = writing(CALL, "It is $919.", tools=tools)
    chunks: list[StreamingChunk] = []
    messages = [ChatMessage.from_user("What is the price?")]
    [reply] = generator.run(messages, streaming_callback=chunks.append)["replies"]
    [call] = reply.tool_calls
    assert (call.tool_name, call.arguments) == ("price_of", {"name": "Glenmoor"})
    assert reply.text is None
    streamed, ended = chunks
    [delta] = streamed.tool_calls or []
    assert (delta.tool_name, delta.arguments, delta.id) == (
        "price_of",
        '{"name": "Glenmoor"}',
        call.id,
    )
    assert ended.finish_reason == reply.meta["finish_reason"] == "tool_calls"
    print_streaming_chunk(streamed)
    assert "price_of" in capsys.readouterr().out

    told = ChatMessage.from_tool(price_of("Glenmoor"), origin=call)
    [reply] = generator.run([*messages, reply, told])["replies"]
    assert reply.text == "It is $919."


# -- refusals -----------------------------------------------------------------------------------


def test_what_cannot_be_read_is_refused(generator: RagMiddleChatGenerator) -> None:
    image = ImageContent(base64_image="iVBORw0KGgo=", mime_type="image/png")
    with pytest.raises(PromptError, match="reads text only"):
        generator.run([ChatMessage.from_user(content_parts=["What is it?", image])])
    with pytest.raises(PromptError, match="Document 0 has no text"):
        generator.run(prompt(QUESTION), documents=[Document(meta={"file": "a.png"})])
    with pytest.raises(PromptError, match=r"Document 0 has no text: got .{,100}\. Convert"):
        generator.run(prompt(QUESTION), documents=[{"text": "Loire " * 400}])  # type: ignore[list-item]
    with pytest.raises(PromptError, match="with the role 'user'"):
        generator.run([ChatMessage.from_system("Read.")], documents=[Document(content="Text.")])
    numbered = "\n".join(f"Document {index}: {mark(text)}" for index, text in enumerate("ab"))
    with pytest.raises(MarkerError, match="between"):
        generator.run(numbered)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"generation_kwargs": {"max_length": 3}}, UnsupportedGenerationError, "max_new_tokens"),
        ({"model_kwargs": {"dtypes": "auto"}}, UnsupportedGenerationError, "dtype"),
        ({"method": "pin"}, UnknownNameError, "pine"),
    ],
)
def test_mistakes_are_named_before_anything_is_loaded(
    model_name: str, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        RagMiddleChatGenerator(model_name, **arguments)


# -- saving -------------------------------------------------------------------------------------


PRESET = "positional_hidden_states:vicuna-7b-v1.5-16k"


def stop_here(chunk: StreamingChunk) -> None:
    """A callback that a pipeline file can name."""


@pytest.mark.parametrize(
    ("arguments", "method", "options"),
    [
        ({"method": f"{PRESET}+siw"}, f"{PRESET}+siw", {}),
        ({"method": "siw", "method_options": {"alpha_dense": 1.5}}, "siw", {"alpha_dense": 1.5}),
        ({"method": SIW(layers=(1, 2))}, "siw", {"layers": [1, 2]}),
    ],
)
def test_a_saved_component_has_the_same_method(
    model_name: str, arguments: dict[str, Any], method: str, options: dict[str, Any]
) -> None:
    generator = RagMiddleChatGenerator(model_name, **arguments)
    saved = generator.to_dict()
    chosen = saved["init_parameters"]
    assert chosen["method"] == method
    assert chosen["method_options"].items() >= options.items()
    again = RagMiddleChatGenerator.from_dict(saved)
    assert again._method == generator._method
    assert again.to_dict() == saved


def test_everything_else_is_saved_too_and_no_token(
    model_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_TOKEN", "hf_secret")
    generator = RagMiddleChatGenerator(
        model_name,
        method="pine",
        generation_kwargs={"temperature": 0.5, "stop": ["\n"], "method": SIW(alpha_dense=1.5)},
        meta_fields=["title"],
        tools=[create_tool_from_function(price_of)],
        streaming_callback=stop_here,
        device=ComponentDevice.from_str("cpu"),
        token=Secret.from_env_var("OUR_TOKEN"),
        model_kwargs={"context_window": 300},
    )
    saved = generator.to_dict()
    assert "hf_secret" not in repr(saved)
    allow_deserialization_module(__name__)
    again = RagMiddleChatGenerator.from_dict(saved)
    assert again.to_dict() == saved
    assert again.streaming_callback is stop_here
    assert again.rag_middle_model.context_window == 300
    assert again.rag_middle_model.model is generator.rag_middle_model.model
    again.close()
    assert again.rag_middle_model.model is generator.rag_middle_model.model


def test_what_no_name_brings_back_is_not_saved(loaded: RagMiddleModel, model_name: str) -> None:
    with pytest.raises(UnsupportedGenerationError, match="loaded model"):
        RagMiddleChatGenerator(loaded).to_dict()
    composed = [SIW(alpha_dense=1.5), LPES(factors=1.1)]
    with pytest.raises(MethodConfigError, match="profile"):
        RagMiddleChatGenerator(model_name, method=composed).to_dict()
    with pytest.raises(UnsupportedGenerationError, match="loaded already"):
        RagMiddleChatGenerator(loaded, device=ComponentDevice.from_str("cpu"))
