"""Build and update an index of a folder of documents."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rag_middle.errors import FileFormatError
from rag_middle.files import expanded, user_cache
from rag_middle.retrieval.embedders import Embedder, SentenceTransformerEmbedder
from rag_middle.retrieval.faiss_index import INDEX_VERSION, Changes, FaissIndex, check_index_folder
from rag_middle.retrieval.readers import MANIFEST, Skipped, file_digests, load
from rag_middle.retrieval.splitting import split

_CHUNK_TOKENS, _CHUNK_CHARACTERS = 200, 1000


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
    chunk_size: int | None = None,
    rebuild: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Built:
    """Index a file or folder, or bring its saved index up to date.

    Where `folder` holds an index of the same documents, it is loaded as it is. Where some have
    changed, only those are embedded again. The index is saved when it is complete; until then the
    old one stays. The embedder is not loaded before the documents are read.

    Args:
        documents: file or folder.
        folder: where the index is saved; without one, it is only in memory.
        embedder: by default :class:`SentenceTransformerEmbedder` with its default model.
        chunk_size: largest size of a chunk, in tokens of the embedder, or in characters where it
            counts none. By default that of the saved index, else 200 tokens, and at most three
            quarters of what the embedder reads, so that there is room for a title; or 1000
            characters.
        rebuild: ignore and replace what is saved, also if it is damaged or of another embedder.
        progress: called with the texts embedded so far and all of them.

    Raises:
        ConfigError: `chunk_size` is below 1.
        FileFormatError: there are no documents; or the saved index is damaged, of an earlier
            version, of another embedder, or has documents that were added to it, and not `rebuild`.
        OutputWriteError: it cannot be saved.
    """
    embedder = SentenceTransformerEmbedder() if embedder is None else embedder
    folder = None if folder is None else expanded(folder)
    index = FaissIndex(embedder)
    files = file_digests(documents)
    if folder is not None:
        check_index_folder(folder)
        if not rebuild and (folder / MANIFEST).exists():
            index = FaissIndex.load(folder, embedder)
            saved = index.built_from
            if saved is None:
                raise FileFormatError(
                    f"The index {str(folder)!r} was changed after it was built, and its documents "
                    "would be lost. Choose another folder for the index of these documents, or "
                    "replace it with rebuild=True (--rebuild)."
                )
            chunk_size = saved["chunk_size"] if chunk_size is None else chunk_size
            if (saved["files"], saved["chunk_size"]) == (files, chunk_size):
                skipped = tuple(Skipped(*it) for it in saved["skipped"])
                return Built(index=index, changes=None, skipped=skipped)
    loaded = load(documents)
    length = getattr(embedder, "count_tokens", len)
    size = _default_chunk_size(embedder) if chunk_size is None else chunk_size
    chunks = split(loaded.documents, size, length)
    changes = index.sync(chunks, progress)
    index.built_from = {"files": files, "chunk_size": chunk_size, "skipped": loaded.skipped}
    if folder is not None:
        index.save(folder)
    return Built(index=index, changes=changes, skipped=loaded.skipped)


def _default_chunk_size(embedder: Embedder) -> int:
    if not hasattr(embedder, "count_tokens"):
        return _CHUNK_CHARACTERS
    return min(_CHUNK_TOKENS, (getattr(embedder, "max_tokens", None) or _CHUNK_TOKENS) * 3 // 4)


def default_index_folder(documents: str | Path, embedder: str) -> Path:
    """Default folder of an index of `documents` by the embedder of that name: in the user's cache.

    Each version of the format has folders of its own: after an update nobody has to rebuild.
    """
    path = Path(os.path.realpath(documents))
    key = repr((INDEX_VERSION, str(path), embedder))
    digest = hashlib.sha256(os.fsencode(key)).hexdigest()[:16]
    return user_cache("indexes") / f"{path.name or 'root'}-{digest}"
