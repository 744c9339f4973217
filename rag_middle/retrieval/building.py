"""Build and update an index of a folder of documents."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rag_middle.errors import EmbedderError, IndexFormatError
from rag_middle.files import user_cache
from rag_middle.retrieval import storage
from rag_middle.retrieval.embedder_files import fingerprint_of_name
from rag_middle.retrieval.embedders import Embedder, SentenceTransformerEmbedder
from rag_middle.retrieval.faiss_index import Changes, FaissIndex
from rag_middle.retrieval.loading import MAX_FILE_BYTES, Loaded, content_hash, load
from rag_middle.retrieval.manifest import MANIFEST, Corpus, Manifest, read_manifest
from rag_middle.retrieval.records import Skipped
from rag_middle.retrieval.splitting import Splitter
from rag_middle.retrieval.vectors import Kind, check_kind
from rag_middle.wording import Argument, counted

__all__ = [
    "Built",
    "build_index",
    "default_index_folder",
    "default_splitter",
    "load_changed",
    "saved_settings",
    "unchanged_index",
]

_CHUNK_TOKENS = 200


@dataclass(frozen=True, kw_only=True)
class Built:
    """The result of :func:`build_index`.

    Attributes:
        index: the index, up to date.
        changes: to the index; None where the documents had not changed.
        skipped: files, lines and records that were left out, and why.
    """

    index: FaissIndex
    changes: Changes | None
    skipped: tuple[Skipped, ...]


def build_index(
    documents: str | Path | Loaded,
    folder: str | Path | None = None,
    *,
    embedder: Embedder | None = None,
    splitter: Splitter | None = None,
    kind: Kind = "auto",
    rebuild: bool = False,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> Built:
    """Index a file or folder, or bring its saved index up to date.

    Where `folder` holds an index of the same documents, it is loaded as it is. Where some have
    changed, only those are embedded again. The index is saved when it is complete; until then the
    old one stays.

    Args:
        documents: file or folder, or what :func:`load` has read of it, with the same
            `max_file_bytes`.
        folder: where the index is saved; without one, it is only in memory.
        embedder: by default :class:`SentenceTransformerEmbedder` with its default model.
        splitter: by default :func:`default_splitter`.
        kind: see :class:`FaissIndex`.
        rebuild: ignore and replace what is saved, also if it is damaged or of another embedder.
        max_file_bytes: larger files are skipped.

    Raises:
        DocumentLoadError: there are no documents.
        IndexFormatError: the saved index is damaged, was made otherwise, or has chunks that were
            added to it, and not `rebuild`.
        IndexLockedError: another process is writing the index.
        IndexWriteError: it cannot be saved.
    """
    check_kind(kind)
    embedder = SentenceTransformerEmbedder() if embedder is None else embedder
    splitter = default_splitter(embedder) if splitter is None else splitter
    settings = {**splitter.settings, "max_file_bytes": max_file_bytes}
    target = None if folder is None else Path(folder)

    saved = _saved(target, embedder, rebuild)
    if saved and saved.kind == kind and saved.corpus:
        current_hash = (
            documents.content_hash
            if isinstance(documents, Loaded)
            else content_hash(documents, max_file_bytes=max_file_bytes)
        )
        if (saved.corpus.content_hash, saved.corpus.settings) == (current_hash, settings):
            return Built(index=saved, changes=None, skipped=saved.corpus.skipped)

    loaded = (
        documents
        if isinstance(documents, Loaded)
        else load(documents, max_file_bytes=max_file_bytes)
    )
    chunks = splitter.split(loaded.records)
    with nullcontext() if target is None else storage.locked(target):
        # Read again: it may have changed before the lock was ours.
        saved = _saved(target, embedder, rebuild)
        if saved and not saved.corpus:
            _refuse_added_chunks(saved, loaded, target)
        index = saved if saved and saved.kind == kind else FaissIndex(embedder, kind=kind)
        changes = index.sync(chunks)
        index.corpus = Corpus(
            content_hash=loaded.content_hash,
            settings=settings,
            skipped=loaded.skipped,
            split_by_default=splitter.settings == default_splitter(embedder).settings,
        )
        if target is not None:
            index.save(target, overwrite=True)
    return Built(index=index, changes=changes, skipped=loaded.skipped)


@dataclass(frozen=True, kw_only=True)
class _UnloadedEmbedder:
    """The embedder of a saved index, as far as it takes to read the index."""

    name: str
    dimension: int
    fingerprint: str | None

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raise EmbedderError(
            "This index was loaded without its embedder, to be described. To search it, load it "
            "with FaissIndex.load(folder, embedder)."
        )


def unchanged_index(
    documents: str | Path,
    folder: str | Path,
    *,
    embedder: str,
    splitter: Splitter | None = None,
    kind: Kind = "auto",
    max_file_bytes: int = MAX_FILE_BYTES,
) -> Built | None:
    """What `build_index` would return for documents that have not changed, within a second or two.

    The embedder takes longer to load than all the rest, so only its files are compared, with those
    that the index was made with. The index can be described, and not be searched.

    Args:
        documents: as for `build_index`, like the others.
        folder: where the index may be.
        embedder: its name; a model of sentence-transformers.
        splitter: whose settings count, not its measure of length; by default the embedder's.
        kind: see :class:`FaissIndex`.
        max_file_bytes: larger files are skipped.

    Returns:
        None where there is no such index, or where something has changed.

    Raises:
        EmbedderError: the embedder's files cannot be read.
        IndexFormatError: the saved index is damaged.
        DocumentLoadError: there are no documents.
    """
    try:
        content = read_manifest(Path(folder))
    except (OSError, ValueError):
        return None
    manifest = Manifest.from_json(content, Path(folder) / MANIFEST)
    corpus = manifest.corpus
    if corpus is None or (manifest.embedder, manifest.kind) != (embedder, kind):
        return None
    settings = dict(corpus.settings)
    if settings.pop("max_file_bytes", None) != max_file_bytes:
        return None
    if not (corpus.split_by_default if splitter is None else settings == splitter.settings):
        return None
    if corpus.content_hash != content_hash(documents, max_file_bytes=max_file_bytes):
        return None
    fingerprint = None if manifest.fingerprint is None else fingerprint_of_name(embedder)
    if fingerprint != manifest.fingerprint:
        return None
    unloaded = _UnloadedEmbedder(
        name=embedder, dimension=manifest.dimension, fingerprint=fingerprint
    )
    index = FaissIndex.load(folder, unloaded)
    return Built(index=index, changes=None, skipped=corpus.skipped)


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

    Empty where there is no index, or one that was not made of a folder of documents.
    """
    manifest = _readable_manifest(folder)
    if manifest is None or manifest.corpus is None:
        return {}
    settings = dict(manifest.corpus.settings)
    kept: dict[str, Any] = {
        "kind": manifest.kind,
        "max_file_bytes": settings.pop("max_file_bytes", MAX_FILE_BYTES),
    }
    count_tokens = getattr(embedder, "count_tokens", None)
    if settings.get("unit") == "characters":
        kept["splitter"] = Splitter(**settings)
    elif settings.get("unit") == "tokens" and count_tokens is not None:
        kept["splitter"] = Splitter(**settings, length=count_tokens)
    return kept


def load_changed(
    documents: str | Path, folder: str | Path, *, max_file_bytes: int | None = None
) -> Loaded | None:
    """Read documents that `build_index` will have to read, before the embedder is loaded.

    Args:
        max_file_bytes: by default as in that index.

    Returns:
        None where the index was made of these very files.

    Raises:
        DocumentLoadError: there are no documents.
    """
    manifest = _readable_manifest(folder)
    corpus = None if manifest is None else manifest.corpus
    if max_file_bytes is None:
        settings = {} if corpus is None else corpus.settings
        max_file_bytes = settings.get("max_file_bytes", MAX_FILE_BYTES)
    if corpus and corpus.content_hash == content_hash(documents, max_file_bytes=max_file_bytes):
        return None
    return load(documents, max_file_bytes=max_file_bytes)


def _readable_manifest(folder: str | Path) -> Manifest | None:
    try:
        return Manifest.from_json(read_manifest(Path(folder)), Path(folder) / MANIFEST)
    except (OSError, ValueError, IndexFormatError):
        return None  # build_index says what is wrong with it


def _saved(folder: Path | None, embedder: Embedder, rebuild: bool) -> FaissIndex | None:
    if folder is None or rebuild or storage.manifest_hash(folder) is None:
        return None
    return FaissIndex.load(folder, embedder)


def _refuse_added_chunks(index: FaissIndex, loaded: Loaded, folder: Path | None) -> None:
    """Refuse to remove what `FaissIndex.add` has put there: it may be nowhere else."""
    sources = {record.source for record in loaded.records}
    added = [chunk for chunk in index.chunks if chunk.source not in sources]
    if added:
        raise IndexFormatError(
            f"The index {str(folder)!r} was changed after it was built, and holds "
            f"{counted(len(added), 'chunk')} that the documents do not have (of "
            f"{added[0].source!r}), which would be lost. Choose another folder for the index of "
            "these documents, or replace it with ",
            Argument("rebuild", True),
            ".",
        )
