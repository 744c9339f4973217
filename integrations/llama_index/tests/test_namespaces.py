"""The distribution's other namespaces, and its example, which uses them."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

from llama_index.embeddings.rag_middle import RagMiddleEmbedding
from llama_index.llms import rag_middle
from llama_index.postprocessor.rag_middle import MarkDocuments

ROOT = Path(__file__).parent.parent


def test_classes_are_the_same_in_every_namespace() -> None:
    assert MarkDocuments is rag_middle.MarkDocuments
    assert RagMiddleEmbedding is rag_middle.RagMiddleEmbedding
    modules = {path.parent for path in (ROOT / "llama_index").glob("**/__init__.py")}
    assert all(module.name == "rag_middle" for module in modules)


def test_embeddings_are_saved_copied_and_sent_to_workers() -> None:
    embedding = RagMiddleEmbedding(embed_batch_size=7)
    vector = embedding.get_text_embedding("Nantes")
    saved = RagMiddleEmbedding.from_dict(json.loads(json.dumps(embedding.to_dict())))
    for copied in (saved, pickle.loads(pickle.dumps(embedding)), copy.deepcopy(embedding)):
        assert isinstance(copied, RagMiddleEmbedding)
        assert copied.embed_batch_size == 7
        assert copied.get_text_embedding("Nantes") == vector
