"""What the tests of ``ask`` and ``chat`` share: a stand-in for the embedder, and documents."""

from pathlib import Path

import pytest

from rag_middle import retrieval
from rag_middle.answering import answerer
from rag_middle.errors import ConfigError
from tests.retrieval.embedding import HashingEmbedder

QUESTION = "Which river is Nantes on, the Loire?"


class NamedEmbedder(HashingEmbedder):
    """Stands for a sentence-transformers model, which takes seconds to load."""

    def __init__(self, name: str | Path | None = None, *, device: str | None = None) -> None:
        if str(name).startswith("nobody/"):
            raise ConfigError(f"Cannot load the embedder {str(name)!r}. unset HF_HUB_OFFLINE")
        super().__init__(name=str(name or "default"))


def use_named_embedder(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Put `NamedEmbedder` in place of the real one, and the user's cache into `cache`."""
    for module in (answerer, retrieval):
        monkeypatch.setattr(module, "SentenceTransformerEmbedder", NamedEmbedder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


def write_documents(folder: Path) -> Path:
    """Three towns, a Markdown file each."""
    folder.mkdir(parents=True)
    for town, river in {"Lyon": "Rhône", "Nantes": "Loire", "Rome": "Tiber"}.items():
        (folder / f"{town.lower()}.md").write_text(f"# {town}\n\n{town} lies on the {river}.\n")
    return folder
