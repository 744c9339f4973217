"""Chains in other situations: no documents, another separator, a batch, an agent that streams."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate

from langchain_rag_middle import (
    ChatRagMiddle,
    DocumentPrompt,
    format_docs,
)
from rag_middle import MarkerError, PromptError

pytestmark = pytest.mark.anyio

QUESTION = "On which river does Nantes lie?"
PROMPT = ChatPromptTemplate.from_template("{context}\n\nQuestion: {input}")


def texts(documents: list[Document]) -> list[str]:
    return [document.page_content for document in documents]


def stuffing(model: Any, **settings: Any) -> Any:
    return create_stuff_documents_chain(
        model, PROMPT, **{"document_prompt": DocumentPrompt(), **settings}
    )


def test_a_separator_may_be_signs_and_words_are_refused(tiny: Any, rivers: list[Document]) -> None:
    model = ChatRagMiddle(model=tiny, max_tokens=4)
    asked = {"context": rivers, "input": QUESTION}
    stuffing(model, document_separator="\n---\n").invoke(asked)
    assert tiny.sent.documents == [f"{text}\n---" for text in texts(rivers)]
    model.invoke(format_docs(rivers, separator="\n---\n"))
    assert len(tiny.sent.documents) == len(rivers)
    with pytest.raises(MarkerError, match="'Next:' stands between"):
        stuffing(model, document_separator="\nNext:\n").invoke(asked)
    with pytest.raises(PromptError, match="separated by whitespace or signs"):
        format_docs(rivers, separator="\nNext:\n")
