"""Build and update an index of a folder of documents."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rag_middle.files import user_cache
from rag_middle.retrieval.embedders import Embedder, SentenceTransformerEmbedder
from rag_middle.retrieval.faiss_index import (
    Changes,
    Corpus,
    FaissIndex,
    check_index_folder,
    saved_corpus,
)
from rag_middle.retrieval.readers import MAX_FILE_BYTES, Skipped, file_digests, load
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
    max_file_bytes: int = MAX_FILE_BYTES,
) -> Built:
    """Index a file or folder, or bring its saved index up to date.

    Where `folder` holds an index of the same documents, it is loaded as it is. Where some have
    changed, only those are embedded again. The index is saved when it is complete; until then the
    old one stays. The embedder is not loaded before the documents are read.

    Args:
        documents: file or folder.
        folder: where the index is saved; without one, it is only in memory.
        embedder: by default :class:`SentenceTransformerEmbedder` with its default model.
        splitter: by default :func:`default_splitter`.
        rebuild: ignore and replace what is saved, also if it is damaged or of another embedder.
        max_file_bytes: larger files are skipped.

    Raises:
        FileFormatError: there are no documents.
        FileFormatError: the saved index is damaged, of an earlier version, of another embedder, or
            has chunks that were added to it, and not `rebuild`.
        OutputWriteError: it cannot be saved.
    """
    embedder = SentenceTransformerEmbedder() if embedder is None else embedder
    settings: dict[str, Any] = {
        "max_file_bytes": max_file_bytes,
        "splitter": None if splitter is None else splitter.settings,
    }
    index = FaissIndex(embedder)
    if folder is not None:
        check_index_folder(Path(folder))
        saved = None if rebuild else saved_corpus(folder, embedder)
        if saved is not None:
            index = FaissIndex.load(folder, embedder)
            files = file_digests(documents, max_file_bytes=max_file_bytes)
            if (saved.files, saved.settings) == (files, settings):
                return Built(index=index, changes=None, skipped=saved.skipped)
    loaded = load(documents, max_file_bytes=max_file_bytes)
    splitter = default_splitter(embedder) if splitter is None else splitter
    changes = index.sync(splitter.split(loaded.records))
    index.corpus = Corpus(files=loaded.files, settings=settings, skipped=loaded.skipped)
    if folder is not None:
        index.save(folder)
    return Built(index=index, changes=changes, skipped=loaded.skipped)


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

    Args:
        documents: the folder or file, which need not exist.
        settings: that distinguish indexes, for example the name of the embedder.
    """
    path = Path(os.path.realpath(documents))
    key = repr((str(path), sorted(settings.items())))
    digest = hashlib.sha256(os.fsencode(key)).hexdigest()[:16]
    return user_cache("indexes") / f"{path.name or 'root'}-{digest}"


def saved_settings(folder: str | Path, embedder: Embedder) -> dict[str, Any]:
    """Arguments of :func:`build_index` that keep the index in `folder` split as it was.

    Empty where there is no index.
    """
    corpus = saved_corpus(folder, embedder)
    if corpus is None:
        return {}
    kept: dict[str, Any] = {"max_file_bytes": corpus.settings["max_file_bytes"]}
    split, count_tokens = corpus.settings["splitter"], getattr(embedder, "count_tokens", None)
    if split and split["unit"] == "characters":
        kept["splitter"] = Splitter(**split)
    elif split and split["unit"] == "tokens" and count_tokens is not None:
        kept["splitter"] = Splitter(**split, length=count_tokens)
    return kept
