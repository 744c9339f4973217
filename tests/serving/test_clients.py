"""Clients of OpenAI's API, as docs/serving.md shows them, and as their users write them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

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
METHODS = ("pine", "none", "lpes:reader")


@pytest.fixture(scope="module")
def served(reader: RagMiddleModel) -> Iterator[Served]:
    with serving(reader, METHODS) as server:
        yield server


@pytest.fixture
def prompt() -> ContextPrompt:
    return reader_question(1)[0]


@pytest.fixture(autouse=True)
def _event_loop() -> Iterator[None]:
    """LlamaIndex makes one where there is none, and leaves it open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


@pytest.mark.parametrize("block", EXAMPLES, ids=["openai", "langchain", "llama_index"])
def test_examples_of_the_page(
    served: Served, block: Block, capsys: pytest.CaptureFixture[str]
) -> None:
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


@pytest.mark.parametrize("way", ["format_docs", "MarkDocuments", "documents"])
@pytest.mark.one_in(3)
def test_langchain_answers_as_the_notebook_does(
    served: Served, prompt: ContextPrompt, langchain_documents: list[Any], way: str
) -> None:
    from langchain_rag_middle import MarkDocuments, format_docs

    expected = served.model.generate(prompt, method="pine")
    body: dict[str, Any] = {"method": "pine"}
    context = f"{format_docs(langchain_documents)}\n\n"
    if way == "documents":
        body["documents"] = [{"text": document.page_content} for document in langchain_documents]
        context = ""
    elif way == "MarkDocuments":
        marked = MarkDocuments().transform_documents(langchain_documents)
        context = "".join(f"{document.page_content}\n\n" for document in marked)
    model = chat_openai(served, extra_body=body, stream_usage=True)
    assert model.invoke(context + prompt.suffix).content == expected.text
    total, *chunks = model.stream(context + prompt.suffix)
    for chunk in chunks:
        total = total + chunk
    assert total.content == expected.text
    assert total.usage_metadata["input_tokens"] == expected.usage.prompt_tokens


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


def test_llama_index_answers_as_the_notebook_does(served: Served, prompt: ContextPrompt) -> None:
    llm = open_ai_like(served, "lpes:reader")
    expected = served.model.generate(prompt, method="lpes:reader").text
    assert llm.complete(prompt.marked).text == expected
    pieces = [piece.delta or "" for piece in llm.stream_complete(prompt.marked)]
    assert "".join(pieces) == expected


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
