"""Embeddings of rag-middle for LlamaIndex."""

from typing import Any

import numpy as np
import pytest
from llama_index.llms.rag_middle import (
    RagMiddleEmbedding,
)


class Two:
    """An embedder of the protocol of rag_middle.retrieval."""

    name, dimension = "two", 2

    def embed(self, texts: Any) -> Any:
        return np.array([[0.6, 0.8]] * len(texts), dtype=np.float32)


def test_an_embedder_of_rag_middle_embeds_for_llama_index() -> None:
    embedding = RagMiddleEmbedding(Two())
    assert embedding.dimension == 2
    assert embedding.get_query_embedding("Loire") == pytest.approx([0.6, 0.8])
    assert len(embedding.get_text_embedding_batch(["a", "b", "c"])) == 3
    assert embedding.model_name == "two"


def test_the_default_embedder_needs_no_network_and_has_length_one() -> None:
    embedding = RagMiddleEmbedding()
    river, town = embedding.get_text_embedding_batch(["the river Loire", "a computer program"])
    assert len(river) == embedding.dimension
    assert np.linalg.norm(river) == pytest.approx(1.0, abs=1e-5)  # float32
    query = embedding.get_query_embedding("Which stream flows there?")
    assert np.dot(query, river) > np.dot(query, town)
