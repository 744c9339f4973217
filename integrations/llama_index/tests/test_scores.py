"""FAISS: scores that are similarities, and a warning about those that are not."""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np
import pytest
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.postprocessor import LongContextReorder
from llama_index.core.schema import NodeWithScore
from llama_index.llms.rag_middle import (
    DistanceScoresWarning,
    RagMiddleEmbedding,
    warn_about_distances,
)
from llama_index.vector_stores.faiss import FaissVectorStore

Nodes = list[NodeWithScore]


def retrieved(kind: Any, nodes: Nodes, embedding: Any, question: str) -> Nodes:
    storage = StorageContext.from_defaults(vector_store=FaissVectorStore(kind(26)))
    index = VectorStoreIndex(
        [n.node for n in nodes], storage_context=storage, embed_model=embedding
    )
    return index.as_retriever(similarity_top_k=6).retrieve(question)


def test_inner_products_of_normalised_embeddings_are_no_distances(
    nodes: Nodes, embedding: Any, question: str
) -> None:
    assert warn_about_distances(FaissVectorStore(faiss.IndexFlatIP(26))) is False
    found = retrieved(faiss.IndexFlatIP, nodes, embedding, question)
    assert warn_about_distances(found) is False
    assert all(0 <= n.score <= 1.001 for n in found)  # cosines of letter counts, float32


def test_distances_are_warned_about(nodes: Nodes, embedding: Any, question: str) -> None:
    for store in (FaissVectorStore(faiss.IndexFlatL2(26)), faiss.IndexHNSWFlat(26, 8)):
        with pytest.warns(DistanceScoresWarning, match="IndexFlatIP"):
            assert warn_about_distances(store)
    with pytest.warns(DistanceScoresWarning, match="The best node has the lowest score"):
        assert warn_about_distances(retrieved(faiss.IndexFlatL2, nodes, embedding, question))


def test_why_it_matters_reordering_by_distance_puts_the_best_into_the_middle(
    nodes: Nodes, embedding: Any, question: str
) -> None:
    places = {}
    for kind in (faiss.IndexFlatIP, faiss.IndexFlatL2):
        found = retrieved(kind, nodes, embedding, question)
        reordered = LongContextReorder().postprocess_nodes(found)
        places[kind] = [n.node_id for n in reordered].index(found[0].node_id)
    assert places[faiss.IndexFlatIP] in (0, 5)
    assert places[faiss.IndexFlatL2] in (2, 3)


def test_nothing_is_concluded_from_scores_that_say_nothing(nodes: Nodes) -> None:
    assert warn_about_distances([]) is False
    assert warn_about_distances(nodes[:1]) is False
    assert warn_about_distances([NodeWithScore(node=n.node) for n in nodes]) is False
    assert warn_about_distances([NodeWithScore(node=n.node, score=1.0) for n in nodes]) is False


def test_other_sources_are_refused() -> None:
    with pytest.raises(TypeError, match="For another store pass"):
        warn_about_distances("faiss")


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
