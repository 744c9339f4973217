"""Chunks and their vectors, searched by meaning."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from rag_middle.errors import (
    EmbedderError,
    IndexFormatError,
    IndexLockedError,
    IndexMismatchError,
    RetrievalConfigError,
)
from rag_middle.plain_data import is_whole
from rag_middle.retrieval import storage
from rag_middle.retrieval.embedders import Embedder, SentenceTransformerEmbedder, fingerprint_of
from rag_middle.retrieval.manifest import REBUILD, Corpus, Manifest
from rag_middle.retrieval.records import Chunk
from rag_middle.retrieval.vectors import Kind, VectorStore
from rag_middle.wording import Argument

__all__ = ["Changes", "FaissIndex", "Hit"]

_NORM_TOLERANCE = 1e-2  # half-precision models normalise to about 1e-3


class Hit(NamedTuple):
    """A retrieved chunk, and its cosine similarity to the query."""

    chunk: Chunk
    score: float


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What :meth:`FaissIndex.sync` did, in chunks."""

    added: int
    kept: int
    removed: int


class FaissIndex:
    """Chunks under their ids, with a vector of length 1 each.

    Several threads may search at once; while one adds, deletes or saves, no other may use the
    index. A call that fails, in the embedder for example, leaves the index as it was.

    Args:
        embedder: turns chunks and queries into vectors.
        kind: ``"flat"`` is exact; ``"ivf"`` is approximate and faster for many vectors; ``"auto"``
            is flat up to 100,000 vectors.

    Raises:
        EmbedderError: the embedder's dimension is no whole number.
    """

    def __init__(self, embedder: Embedder, *, kind: Kind = "auto") -> None:
        if not is_whole(embedder.dimension, 1):
            raise EmbedderError(
                f"The dimension of the embedder {embedder.name} must be a whole number, at least "
                f"1, got {embedder.dimension!r}."
            )
        self.embedder = embedder
        self.corpus: Corpus | None = None
        self._store = VectorStore(embedder.dimension, kind)
        self._chunks: dict[int, Chunk] = {}  # by key in the store
        self._keys: dict[str, int] = {}  # chunk id -> key
        self._next_key = 0
        self._saved: tuple[Path, str] | None = None  # folder and state this index came from

    @property
    def kind(self) -> Kind:
        return self._store.kind

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """All chunks, in the order they were added."""
        return tuple(self._chunks.values())

    def __len__(self) -> int:
        return len(self._chunks)

    def __contains__(self, chunk_id: object) -> bool:
        return chunk_id in self._keys

    def add(self, chunks: Iterable[Chunk]) -> int:
        """Embed and add chunks; those whose id is here already are left out.

        Returns:
            How many were added.

        Raises:
            EmbedderError: the embedder returned something else than unit vectors.
        """
        new = {chunk.id: chunk for chunk in chunks if chunk.id not in self._keys}
        self._insert(list(new.values()), self._embed([chunk.render() for chunk in new.values()]))
        return len(new)

    def delete(self, ids: Iterable[str] = (), *, source: str | None = None) -> int:
        """Remove chunks by id, or all chunks of a source, or both.

        Returns:
            How many were here and were removed.

        Raises:
            RetrievalConfigError: `ids` is a single string.
        """
        if isinstance(ids, str):
            raise RetrievalConfigError(f"ids must be a list of ids, got {ids!r}.")
        keys = {self._keys[id_] for id_ in ids if id_ in self._keys}
        if source is not None:
            keys |= {key for key, chunk in self._chunks.items() if chunk.source == source}
        self._drop(keys)
        return len(keys)

    def sync(self, chunks: Iterable[Chunk]) -> Changes:
        """Make these the chunks of the index, in this order.

        New ones are embedded, and those not named removed. A chunk whose title or text is
        another than that of its id here is a new one.

        Raises:
            EmbedderError: as in :meth:`add`.
        """
        wanted = {chunk.id: chunk for chunk in chunks}
        kept_keys = {
            id_: key
            for id_, key in self._keys.items()
            if id_ in wanted and wanted[id_].render() == self._chunks[key].render()
        }
        new = [chunk for id_, chunk in wanted.items() if id_ not in kept_keys]
        vectors = self._embed([chunk.render() for chunk in new])
        removed = [key for id_, key in self._keys.items() if id_ not in kept_keys]
        self._drop(removed)
        for id_, key in kept_keys.items():
            self._chunks[key] = wanted[id_]  # its metadata may be new
        kept = len(self)
        self._insert(new, vectors)
        self._arrange(list(wanted))
        return Changes(added=len(new), kept=kept, removed=len(removed))

    def search(self, query: str | NDArray[np.float32], k: int = 20) -> list[Hit]:
        """The `k` chunks closest to a text or a vector [dimension], best first.

        Fewer come back where the index holds fewer.

        Raises:
            RetrievalConfigError: `k` is below 1, or the query is empty or of another dimension.
        """
        if isinstance(query, str):
            return self.search_many([query], k)[0]
        return self.search_many(np.asarray(query)[None], k)[0]

    def search_many(
        self, queries: Sequence[str] | NDArray[np.float32], k: int = 20
    ) -> list[list[Hit]]:
        """:meth:`search` for several texts, or vectors [queries, dimension], at once."""
        if not is_whole(k, 1):
            raise RetrievalConfigError(f"k must be a whole number, at least 1, got {k!r}.")
        if isinstance(queries, np.ndarray):
            vectors = self._normalised(queries)
        else:
            if not all(isinstance(query, str) and query.strip() for query in queries):
                raise RetrievalConfigError("The query is empty. Ask for something.")
            vectors = self._embed(queries)
        rows = self._store.search(vectors, k)
        if any(key not in self._chunks for row in rows for key, _ in row):
            raise IndexFormatError(
                "The index finds passages that it does not have: its vectors are damaged. Build it "
                "anew: ",
                Argument("rebuild", True),
                ".",
            )
        return [[Hit(self._chunks[key], score) for key, score in row] for row in rows]

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Save the index in a folder of its own.

        A process that is stopped meanwhile leaves what was there, or the new index, whole.

        Args:
            folder: made if it is not there.
            overwrite: replace another index, or one that has changed since this one was loaded.

        Raises:
            IndexLockedError: another process is writing, or has written since this index was
                loaded, or the folder holds another index and `overwrite` is not set.
            IndexWriteError: no permission, no space, or a folder that holds something else.
        """
        path = Path(folder)
        with storage.locked(path):
            state = storage.manifest_hash(path)
            if state is not None and not overwrite and self._saved != (path.resolve(), state):
                raise IndexLockedError(
                    f"The folder {str(path)!r} holds another index, or this one with later "
                    "changes. Load it and change that, or replace it with overwrite=True."
                )
            manifest = Manifest(
                embedder=self.embedder.name,
                dimension=self.embedder.dimension,
                kind=self.kind,
                count=len(self),
                vectors="",
                vectors_sha256="",
                chunks="",
                chunks_sha256="",
                corpus=self.corpus,
                fingerprint=fingerprint_of(self.embedder),
            )
            rows = ({"key": key, **asdict(chunk)} for key, chunk in self._chunks.items())
            _, state = storage.write(path, manifest, self._store.index, rows)
            self._saved = path.resolve(), state

    @classmethod
    def load(cls, folder: str | Path, embedder: Embedder | None = None) -> FaissIndex:
        """A saved index.

        Args:
            folder: where it was saved.
            embedder: the one it was made with; by default the default embedder.

        Raises:
            IndexFormatError: there is no index, or it is damaged or of another version.
            IndexMismatchError: it was made with another embedder, or with other files of this one.
        """
        saved = storage.read(Path(folder))
        manifest = saved.manifest
        embedder = SentenceTransformerEmbedder() if embedder is None else embedder
        made_with = (manifest.embedder, manifest.dimension)
        if made_with != (embedder.name, embedder.dimension):
            raise IndexMismatchError(
                f"The index {str(folder)!r} was made with the embedder {manifest.embedder} "
                f"(dimension {manifest.dimension}), not with {embedder.name} (dimension "
                f"{embedder.dimension}). Pass that embedder (",
                Argument("embedder", manifest.embedder),
                "), or build the index anew: ",
                Argument("rebuild", True),
                ".",
            )
        fingerprint = fingerprint_of(embedder)
        if fingerprint != manifest.fingerprint and None not in (fingerprint, manifest.fingerprint):
            raise IndexMismatchError(
                f"The index {str(folder)!r} was made with other files of the embedder "
                f"{manifest.embedder} (fingerprint {manifest.fingerprint:.12}, now "
                f"{fingerprint:.12}): its weights, tokenizer or settings have been replaced. Put "
                "the old ones back, or build the index anew: ",
                Argument("rebuild", True),
                ".",
            )
        index = cls(embedder, kind=cast(Kind, manifest.kind))
        index._store = VectorStore(manifest.dimension, index.kind, saved.vectors)
        index.corpus = manifest.corpus
        try:
            for row in saved.rows:
                index._register(row.pop("key"), Chunk(**row))
        except (AttributeError, KeyError, TypeError) as error:
            raise IndexFormatError(
                f"The chunks of the index {str(folder)!r} are of another shape ({error}). ",
                *REBUILD,
            ) from error
        if sorted(index._chunks) != index._store.keys().tolist():
            raise IndexFormatError(
                f"The vectors of the index {str(folder)!r} belong to other chunks. ", *REBUILD
            )
        index._saved = Path(folder).resolve(), saved.manifest_hash
        return index

    def _insert(self, chunks: Sequence[Chunk], vectors: NDArray[np.float32]) -> None:
        keys = range(self._next_key, self._next_key + len(chunks))
        self._store.add(vectors, keys)
        for key, chunk in zip(keys, chunks, strict=True):
            self._register(key, chunk)
        self.corpus = None

    def _arrange(self, ids: Sequence[str]) -> None:
        """Number the chunks in this order, in which equal scores come, as if all were new."""
        keys = [self._keys[id_] for id_ in ids]
        if keys == list(range(len(keys))):
            return
        chunks = [self._chunks[key] for key in keys]
        self._store.renumber(keys)
        self._chunks = dict(enumerate(chunks))
        self._keys = {chunk.id: key for key, chunk in enumerate(chunks)}
        self._next_key = len(chunks)

    def _register(self, key: int, chunk: Chunk) -> None:
        self._chunks[key] = chunk
        self._keys[chunk.id] = key
        self._next_key = max(self._next_key, key + 1)

    def _drop(self, keys: Collection[int]) -> None:
        self._store.remove(keys)
        for key in keys:
            del self._keys[self._chunks.pop(key).id]
        self.corpus = None

    def _embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = np.asarray(self.embedder.embed(texts))
        expected = (len(texts), self.embedder.dimension)
        if vectors.shape != expected:
            raise EmbedderError(
                f"The embedder {self.embedder.name} should return vectors of shape {expected}, got "
                f"{vectors.shape}."
            )
        lengths = np.linalg.norm(vectors, axis=1)
        if not np.all(np.abs(lengths - 1) < _NORM_TOLERANCE):  # catches NaN too
            raise EmbedderError(
                f"The embedder {self.embedder.name} should return vectors of length 1, got lengths "
                f"from {lengths.min():.3g} to {lengths.max():.3g}. Divide each by its length."
            )
        return self._normalised(vectors)

    def _normalised(self, vectors: NDArray[Any]) -> NDArray[np.float32]:
        if vectors.ndim != 2 or vectors.shape[1] != self.embedder.dimension:
            raise RetrievalConfigError(
                f"Vectors should have shape [queries, {self.embedder.dimension}], got "
                f"{list(vectors.shape)}."
            )
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not np.all(np.isfinite(lengths) & (lengths > 0)):
            raise RetrievalConfigError("A vector is zero or not finite: it has no direction.")
        return np.ascontiguousarray(vectors / lengths, dtype=np.float32)
