"""Build and update an index of a folder of documents."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rag_middle.errors import FileFormatError
from rag_middle.files import user_cache
from rag_middle.retrieval.embedders import Embedder, SentenceTransformerEmbedder
from rag_middle.retrieval.faiss_index import (
    INDEX_VERSION,
    Changes,
    Corpus,
    FaissIndex,
    check_index_folder,
)
from rag_middle.retrieval.readers import MANIFEST, Skipped, file_digests, load
from rag_middle.retrieval.splitting import Splitter

_CHUNK_TOKENS = 200


@dataclass(frozen=True, kw_only=True)
class Built:
    """The result of :func:`build_index`.

    Attributes:
        index: the index, up to date.
        changes: to the index; None where the documents had not changed.
        skipped: files, lines and pages that were left out, and why.
    """

    index: FaissIndex
    changes: Changes | None
    skipped: tuple[Skipped, ...]


def build_index(
    documents: str | Path,
    folder: str | Path | None = None,
    *,
    embedder: Embedder | None = None,
    splitter: Splitter | None = None,
    rebuild: bool = False,
) -> Built:
    """Index a file or folder, or bring its saved index up to date.

    Where `folder` holds an index of the same documents, it is loaded as it is. Where some have
    changed, only those are embedded again. The index is saved when it is complete; until then the
    old one stays. The embedder is not loaded before the documents are read.

    Args:
        documents: file or folder.
        folder: where the index is saved; without one, it is only in memory.
        embedder: by default :class:`SentenceTransformerEmbedder` with its default model.
        splitter: by default the one of the saved index, else :func:`default_splitter`.
        rebuild: ignore and replace what is saved, also if it is damaged or of another embedder.

    Raises:
        FileFormatError: there are no documents; or the saved index is damaged, of an earlier
            version, of another embedder, or has chunks that were added to it, and not `rebuild`.
        OutputWriteError: it cannot be saved.
    """
    embedder = SentenceTransformerEmbedder() if embedder is None else embedder
    settings: Mapping[str, Any] | None = None if splitter is None else splitter.settings
    index = FaissIndex(embedder)
    if folder is not None:
        check_index_folder(Path(folder))
        if not rebuild and (Path(folder) / MANIFEST).exists():
            index = FaissIndex.load(folder, embedder)
            saved = index.corpus
            if saved is None:
                raise FileFormatError(
                    f"The index {str(folder)!r} was changed after it was built, and its chunks "
                    "would be lost. Choose another folder for the index of these documents, or "
                    "replace it with rebuild=True (--rebuild)."
                )
            if splitter is None:
                splitter, settings = _saved_splitter(saved.splitter, embedder), saved.splitter
            if (saved.files, saved.splitter) == (file_digests(documents), settings):
                return Built(index=index, changes=None, skipped=saved.skipped)
    loaded = load(documents)
    splitter = default_splitter(embedder) if splitter is None else splitter
    changes = index.sync(splitter.split(loaded.records))
    index.corpus = Corpus(files=loaded.files, splitter=settings, skipped=loaded.skipped)
    if folder is not None:
        index.save(folder)
    return Built(index=index, changes=changes, skipped=loaded.skipped)


def _saved_splitter(settings: Any, embedder: Embedder) -> Splitter | None:
    """The splitter of a saved index; None for the default one, or one that nobody knows here."""
    count_tokens = getattr(embedder, "count_tokens", None)
    if settings and settings["unit"] == "characters":
        return Splitter(**settings)
    if settings and settings["unit"] == "tokens" and count_tokens is not None:
        return Splitter(**settings, length=count_tokens)
    return None


def default_splitter(embedder: Embedder) -> Splitter:
    """Chunks that the embedder reads to their end, with room for a title.

    At most 200 tokens, and three quarters of what a sentence-transformers model reads; for other
    embedders 1000 characters.
    """
    if not isinstance(embedder, SentenceTransformerEmbedder):
        return Splitter()
    size = min(_CHUNK_TOKENS, (embedder.max_tokens or _CHUNK_TOKENS) * 3 // 4)
    return Splitter(
        chunk_size=size, overlap=size // 10, length=embedder.count_tokens, unit="tokens"
    )


def default_index_folder(documents: str | Path, **settings: Any) -> Path:
    """Default folder of an index of `documents`, in the user's cache.

    Each version of the format has folders of its own: after an update nobody has to rebuild.

    Args:
        documents: the folder or file, which need not exist.
        settings: that distinguish indexes, for example the name of the embedder.
    """
    path = Path(os.path.realpath(documents))
    key = repr((INDEX_VERSION, str(path), sorted(settings.items())))
    digest = hashlib.sha256(os.fsencode(key)).hexdigest()[:16]
    return user_cache("indexes") / f"{path.name or 'root'}-{digest}"
