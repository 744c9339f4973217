"""The package is what LlamaIndex expects of an integration; its embeddings."""

import copy
import json
import pickle
from importlib.metadata import distribution, requires
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_index.embeddings.rag_middle import RagMiddleEmbedding
from llama_index.llms import rag_middle
from llama_index.postprocessor.rag_middle import MarkDocuments

ROOT = Path(__file__).parent.parent


def test_the_namespace_is_shared() -> None:
    import llama_index
    import llama_index.core
    import llama_index.llms

    for namespace in (llama_index, llama_index.llms):
        assert getattr(namespace, "__file__", None) is None
    modules = {path.parent.name for path in (ROOT / "llama_index").glob("**/__init__.py")}
    assert modules == {"rag_middle"}
    assert MarkDocuments is rag_middle.MarkDocuments
    assert RagMiddleEmbedding is rag_middle.RagMiddleEmbedding


def test_it_depends_on_llama_index_core_and_rag_middle_only() -> None:
    assert distribution("llama-index-llms-rag-middle").metadata["Name"]
    names = {r.split(">")[0].split("<")[0].strip() for r in requires("llama-index-llms-rag-middle")}
    assert names == {"llama-index-core", "rag-middle"}


def test_embeddings_are_saved_copied_and_sent_to_workers() -> None:
    embedding = RagMiddleEmbedding(embed_batch_size=7)
    vector = embedding.get_text_embedding("Nantes")
    saved = RagMiddleEmbedding.from_dict(json.loads(json.dumps(embedding.to_dict())))
    for copied in (saved, pickle.loads(pickle.dumps(embedding)), copy.deepcopy(embedding)):
        assert isinstance(copied, RagMiddleEmbedding)
        assert copied.embed_batch_size == 7
        assert copied.get_text_embedding("Nantes") == vector


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
