"""What a model tells about its calls besides the answer: the last report, and missing documents."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
from langchain_classic.chains import create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_classic.chains.summarize import load_summarize_chain
from langchain_core.documents import Document
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import RunnableLambda

from langchain_rag_middle import ChatRagMiddle, RagMiddleLLM, format_docs
from rag_middle import PromptError, RagMiddleModel
from rag_middle.generation import MissingDocumentsWarning

if TYPE_CHECKING:
    from conftest import RecordingModel


@pytest.mark.parametrize("kind", [ChatRagMiddle, RagMiddleLLM])
def test_the_last_report_is_on_the_model(
    kind: Any, tiny: RecordingModel, rivers: Sequence[Document]
) -> None:
    model = kind(model=tiny, method="pine", max_tokens=2)
    assert model.last_report is None
    model.invoke(format_docs(rivers) + "\n\nWhich river?")
    report = model.last_report
    assert (report["method"], report["documents"], report["applied"]) == ("pine", len(rivers), True)
    list(model.bind(max_tokens=1).stream(format_docs(rivers[:2])))
    assert model.last_report["documents"] == 2


@pytest.mark.parametrize("kind", [ChatRagMiddle, RagMiddleLLM])
def test_forgotten_marks_are_announced_every_time_at_the_users_line(
    kind: Any, tiny: RecordingModel, rivers: Sequence[Document]
) -> None:
    plain = RagMiddleModel(tiny.model, tiny.tokenizer)  # one that records calls from elsewhere
    model = kind(model=plain, method="pine", max_tokens=1)
    prompt = "\n\n".join(["The context:", *(document.page_content for document in rivers[::2])])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            model.invoke(prompt)
        assert len(caught) == 2
        model.batch([prompt, prompt])
        assert len(caught) == 4
        asyncio.run(model.ainvoke(prompt))
        assert len(caught) == 5
        list(model.stream(prompt))
        assert len(caught) == 6
    assert all("The context: Lyon lies where" in str(warning.message) for warning in caught)
    assert {warning.filename for warning in caught} == {__file__}
    assert {warning.category for warning in caught} == {MissingDocumentsWarning}
    with pytest.raises(PromptError, match="The context: Lyon"):
        model.invoke(prompt, on_missing_documents="error")


@pytest.mark.parametrize("kind", [ChatRagMiddle, RagMiddleLLM])
def test_a_chain_of_many_calls_warns_once(
    kind: Any, tiny: RecordingModel, rivers: Sequence[Document]
) -> None:
    documents = [*rivers[::2]] * 2  # those whose text has no markers
    plain = RagMiddleModel(tiny.model, tiny.tokenizer)
    model = kind(model=plain, method="pine", max_tokens=1)
    chain = load_summarize_chain(model, chain_type="map_reduce")
    piped = PromptTemplate.from_template("{text}") | model
    texts = [{"text": document.page_content} for document in documents]
    stuffing = create_stuff_documents_chain(model, PromptTemplate.from_template("{context}"))
    retrieving = create_retrieval_chain(RunnableLambda(lambda _: documents), stuffing)
    for run in (
        lambda: retrieving.invoke({"input": "Which?"}),  # which answers in a thread
        lambda: [chain.invoke({"input_documents": documents}) for _ in range(2)],
        lambda: asyncio.run(chain.ainvoke({"input_documents": documents})),
        lambda: piped.batch(texts),
        lambda: asyncio.run(piped.abatch(texts)),
    ):
        with pytest.warns(MissingDocumentsWarning) as caught:  # each of these lines is another one
            run()
        assert [warning.filename for warning in caught] == [__file__]
