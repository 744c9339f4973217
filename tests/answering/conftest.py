"""A tiny random model over a few documents."""

from pathlib import Path

import pytest

from rag_middle.answering import Answerer
from rag_middle.generation import RagMiddleModel
from rag_middle.retrieval import Retriever, build_index
from tests.retrieval.embedding import HashingEmbedder
from tests.tiny_models import speaking
from tests.tokenizers import CHATML, byte_level_bpe

RIVERS = {"Lyon": "Rhône", "Nantes": "Loire", "Rome": "Tiber", "Bordeaux": "Garonne"}


@pytest.fixture(scope="session")
def model() -> RagMiddleModel:
    tokenizer = byte_level_bpe(chat_template=CHATML)
    return speaking("answering", tokenizer, max_position_embeddings=1024)


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """One file per town."""
    folder = tmp_path / "docs"
    folder.mkdir()
    for town, river in RIVERS.items():
        (folder / f"{town.lower()}.md").write_text(f"# {town}\n\n{town} lies on the {river}.\n")
    return folder


@pytest.fixture
def embedder() -> HashingEmbedder:
    return HashingEmbedder()


@pytest.fixture
def answerer(model: RagMiddleModel, docs: Path, embedder: HashingEmbedder) -> Answerer:
    index = build_index(docs, embedder=embedder).index
    return Answerer(model, Retriever(index=index))
