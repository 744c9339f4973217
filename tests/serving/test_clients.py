"""Clients of OpenAI's API, as docs/serving.md shows them, and as their users write them."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rag_middle import mark
from rag_middle.documents import ContextPrompt
from rag_middle.generation import RagMiddleModel
from tests.reader.questions import reader_question
from tests.serving.conftest import Served, serving
from tests.test_code_blocks import ROOT, Block, blocks

PAGE = ROOT / "docs" / "serving.md"
EXAMPLES = [
    block
    for block in blocks(PAGE, "python", excused=True)
    if "test_clients" in (block.excuse or "")
]
NAMES = ("openai", "langchain_openai", "llama_index.llms.openai_like", "dspy", "haystack")
METHODS = ("pine", "none", "lpes:reader")


@pytest.fixture(scope="module")
def served(reader: RagMiddleModel) -> Iterator[Served]:
    with serving(reader, METHODS) as server:
        yield server


@pytest.fixture
def prompt() -> ContextPrompt:
    return reader_question(1)[0]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """These libraries ask the network for prices, and tell it who uses them."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    monkeypatch.setenv("HAYSTACK_TELEMETRY_ENABLED", "False")
    monkeypatch.setenv("DSPY_CACHEDIR", str(tmp_path))


@pytest.fixture(autouse=True)
def _event_loop() -> Iterator[None]:
    """LlamaIndex makes one where there is none, and leaves it open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


def test_the_page_has_an_example_for_each() -> None:
    assert len(EXAMPLES) == len(NAMES)
    assert all(name in block.code for name, block in zip(NAMES, EXAMPLES, strict=True))


@pytest.mark.parametrize(("name", "block"), [*zip(NAMES, EXAMPLES, strict=True)], ids=NAMES)
@pytest.mark.one_in(3)
def test_examples_of_the_page(
    served: Served, name: str, block: Block, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(name, reason=f"{name} comes with the extra 'clients'")
    code = block.code.replace("http://127.0.0.1:8000", served.url)
    code = code.replace("Qwen/Qwen2.5-1.5B-Instruct", "tested")
    exec(compile(code, f"{PAGE.name}:{block.line}", "exec"), {})
    assert "Lyon" in capsys.readouterr().out


def chat_openai(served: Served, **more: Any) -> Any:
    from langchain_openai import ChatOpenAI

    url = f"{served.url}/v1"
    return ChatOpenAI(base_url=url, api_key="none", model="tested", max_retries=0, **more)


@pytest.fixture
def langchain_documents(prompt: ContextPrompt) -> list[Any]:
    from langchain_core.documents import Document

    return [
        Document(document.text, metadata={"title": document.id}) for document in prompt.documents
    ]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("way", ["format_docs", "DocumentPrompt", "MarkDocuments", "documents"])
@pytest.mark.one_in(3)
def test_langchain_answers_as_the_notebook_does(
    served: Served, prompt: ContextPrompt, langchain_documents: list[Any], method: str, way: str
) -> None:
    from langchain_classic.chains.combine_documents import create_stuff_documents_chain
    from langchain_core.prompts import ChatPromptTemplate

    from langchain_rag_middle import DocumentPrompt, MarkDocuments, format_docs

    expected = served.model.generate(prompt, method=method)
    body: dict[str, Any] = {"method": method}
    if way == "documents":
        body["documents"] = [{"text": document.page_content} for document in langchain_documents]
        model = chat_openai(served, extra_body=body)
        answer = model.invoke(prompt.suffix).content
    elif way == "format_docs":
        model = chat_openai(served, extra_body=body)
        answer = model.invoke(f"{format_docs(langchain_documents)}\n\n{prompt.suffix}").content
    else:
        model = chat_openai(served, extra_body=body)
        template = ChatPromptTemplate.from_messages([("user", "{context}\n\n{question}")])
        documents, more = langchain_documents, {}
        if way == "MarkDocuments":
            documents = list(MarkDocuments().transform_documents(documents))
        else:
            more["document_prompt"] = DocumentPrompt()
        chain = create_stuff_documents_chain(model, template, **more)
        answer = chain.invoke({"context": documents, "question": prompt.suffix})
    assert answer == expected.text
    assert reader_question(1)[1] in answer


def test_langchain_streams_and_counts(served: Served, prompt: ContextPrompt) -> None:
    model = chat_openai(served, stream_usage=True)
    chunks = list(model.stream(prompt.marked))
    expected = served.model.generate(prompt, method="pine")
    assert "".join(chunk.content for chunk in chunks) == expected.text
    total = chunks[0]
    for chunk in chunks[1:]:
        total = total + chunk
    assert total.usage_metadata["input_tokens"] == expected.usage.prompt_tokens
    assert total.usage_metadata["output_tokens"] == expected.usage.completion_tokens


@pytest.mark.parametrize("kind", ["search_result", "document"])
def test_langchains_blocks(served: Served, prompt: ContextPrompt, kind: str) -> None:
    from langchain_core.messages import HumanMessage

    made: list[dict[str, Any]] = [
        {"type": "search_result", "source": "a", "title": "", "content": [text]}
        if kind == "search_result"
        else {"type": "document", "source": {"type": "content", "content": [text]}}
        for document in prompt.documents
        for text in [{"type": "text", "text": document.text}]
    ]
    question = {"type": "text", "text": prompt.suffix}
    answer = chat_openai(served).invoke([HumanMessage([*made, question])])
    assert answer.content == served.model.generate(prompt, method="pine").text


def open_ai_like(served: Served, method: str) -> Any:
    from llama_index.llms.openai_like import OpenAILike

    return OpenAILike(
        model="tested",
        api_base=f"{served.url}/v1",
        api_key="none",
        is_chat_model=True,
        context_window=2048,
        max_tokens=64,
        max_retries=0,
        additional_kwargs={"extra_body": {"method": method}},
    )


@pytest.mark.parametrize("method", METHODS)
def test_llama_index_answers_as_the_notebook_does(
    served: Served, prompt: ContextPrompt, method: str
) -> None:
    llm = open_ai_like(served, method)
    expected = served.model.generate(prompt, method=method).text
    assert llm.complete(prompt.marked).text == expected
    pieces = [piece.delta or "" for piece in llm.stream_complete(prompt.marked)]
    assert "".join(pieces) == expected


def test_llama_indexs_document_blocks(served: Served, prompt: ContextPrompt) -> None:
    from llama_index.core.base.llms.types import ChatMessage, DocumentBlock, TextBlock

    made = [
        DocumentBlock(
            data=base64.b64encode(document.text.encode()),
            document_mimetype="text/plain",
            title="",
        )
        for document in prompt.documents
    ]
    message = ChatMessage(role="user", blocks=[*made, TextBlock(text=prompt.suffix)])
    answer = open_ai_like(served, "pine").chat([message])
    assert answer.raw.rag_middle["documents"] == 6
    assert answer.raw.rag_middle["applied"]


def test_llama_index_packs_whole_documents(served: Served, prompt: ContextPrompt) -> None:
    from llama_index.core import PromptTemplate, get_response_synthesizer
    from llama_index.core.schema import NodeWithScore, TextNode
    from llama_index.llms.rag_middle import DocumentPromptHelper, MarkDocuments

    llm = open_ai_like(served, "pine")
    nodes = [
        NodeWithScore(node=TextNode(text=document.text), score=1.0) for document in prompt.documents
    ]
    synthesizer = get_response_synthesizer(
        llm,
        prompt_helper=DocumentPromptHelper.from_llm(llm),
        text_qa_template=PromptTemplate("{context_str}\n\n{query_str}"),
    )
    marked = MarkDocuments().postprocess_nodes(nodes)
    answer = synthesizer.synthesize(prompt.suffix, marked)
    assert str(answer) == served.model.generate(prompt, method="pine").text


def test_dspy_and_haystack_send_marked_text(served: Served, prompt: ContextPrompt) -> None:
    reason = "comes with the extra 'clients'"
    dspy = pytest.importorskip("dspy", reason=reason)
    haystack = pytest.importorskip("haystack.components.generators.chat", reason=reason)
    from haystack.dataclasses import ChatMessage
    from haystack.utils import Secret

    expected = served.model.generate(prompt, method="lpes:reader").text
    text = "".join(f"{mark(document)}\n\n" for document in prompt.documents)
    url, body = f"{served.url}/v1", {"method": "lpes:reader"}
    lm = dspy.LM("openai/tested", api_base=url, api_key="none", extra_body=body, cache=False)
    assert lm(text + prompt.suffix) == [expected]
    generator = haystack.OpenAIChatGenerator(
        api_key=Secret.from_token("none"),
        api_base_url=url,
        model="tested",
        generation_kwargs={"extra_body": body},
    )
    [reply] = generator.run([ChatMessage.from_user(text + prompt.suffix)])["replies"]
    assert reply.text == expected
