"""What a model tells about its calls besides the answer: the last report, and missing documents."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.documents import Document

from langchain_rag_middle import ChatRagMiddle, RagMiddleLLM, format_docs
from rag_middle import PromptError
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
def test_an_answer_from_a_cache_leaves_no_report_of_another(
    kind: Any, tiny: RecordingModel, rivers: Sequence[Document]
) -> None:
    model = kind(model=tiny, method="pine", max_tokens=2, cache=InMemoryCache())
    first = format_docs(rivers)
    for prompt, documents in ((first, len(rivers)), (format_docs(rivers[:2]), 2)):
        model.invoke(prompt)
        assert model.last_report["documents"] == documents
    model.invoke(first)
    assert model.last_report is None
    asyncio.run(model.ainvoke(first))
    assert model.last_report is None


@pytest.mark.parametrize("kind", [ChatRagMiddle, RagMiddleLLM])
def test_forgotten_marks_are_announced_and_can_be_refused(
    kind: Any, tiny: RecordingModel, rivers: Sequence[Document]
) -> None:
    model = kind(model=tiny, method="pine", max_tokens=1)
    prompt = "\n\n".join(["The context:", *(document.page_content for document in rivers[::2])])
    for call in (
        lambda: model.invoke(prompt),
        lambda: model.batch([prompt, prompt]),
        lambda: asyncio.run(model.ainvoke(prompt)),
        lambda: list(model.stream(prompt)),
    ):
        with pytest.warns(MissingDocumentsWarning, match="pine needs documents"):
            call()
    with pytest.raises(PromptError, match="pine needs documents"):
        model.invoke(prompt, on_missing_documents="error")
