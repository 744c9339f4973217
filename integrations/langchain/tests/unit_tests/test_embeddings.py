"""Embeddings for vector stores of LangChain, and histories without markers."""

from __future__ import annotations

import asyncio
import copy
import pickle

import pytest
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_rag_middle import RagMiddleEmbeddings


def test_a_vector_store_finds_documents_by_meaning() -> None:
    embeddings = RagMiddleEmbeddings()
    texts = ["Lyon lies on the Rhône.", "The cat sleeps on the sofa.", "Nantes lies on the Loire."]
    store = InMemoryVectorStore.from_texts(texts, embeddings)
    assert (
        store.similarity_search("On which river does Nantes lie?", k=1)[0].page_content
        == (texts[2])
    )
    vector = embeddings.embed_query(texts[0])
    assert len(vector) == embeddings.dimension
    assert sum(x * x for x in vector) == pytest.approx(1.0, abs=1e-5)
    assert asyncio.run(embeddings.aembed_documents(texts))[0] == pytest.approx(vector, abs=1e-5)
    assert embeddings.embed_documents([]) == []


def test_copies_and_other_processes_load_the_same_embedder() -> None:
    embeddings = RagMiddleEmbeddings()
    vector = embeddings.embed_query("Nantes")
    for copied in (pickle.loads(pickle.dumps(embeddings)), copy.deepcopy(embeddings)):
        assert copied.embed_query("Nantes") == vector
