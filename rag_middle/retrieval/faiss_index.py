"""Chunks and their vectors, searched by meaning: a flat faiss index on disk and in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from rag_middle.errors import ConfigError, FileFormatError, OutputWriteError
from rag_middle.extras import require
from rag_middle.files import reason, write_files
from rag_middle.plain_data import is_whole
from rag_middle.retrieval.embedders import (
    Embedder,
    SentenceTransformerEmbedder,
    embed_questions,
    fingerprint_of,
)
from rag_middle.retrieval.readers import MANIFEST, Skipped
from rag_middle.retrieval.splitting import Chunk

_FORMAT, _VERSION = "rag-middle-index", 2
_REBUILD = "Build it anew: rebuild=True (--rebuild)."
#: What an index may consist of, also one of an earlier version or that nobody finished writing.
_FILES = re.compile(r"manifest\.json|(vectors|chunks)-[0-9a-f]{16}\.(faiss|jsonl)|\..*|.*\.part")
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


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """What an index was built from.

    Attributes:
        files: sha256 of each file by its source; why it was not read, of others.
        settings: how they were split and loaded.
        skipped: what was left out.
    """

    files: Mapping[str, str] = field(hash=False)
    settings: Mapping[str, Any] = field(hash=False)
    skipped: tuple[Skipped, ...] = ()


class FaissIndex:
    """Chunks under their ids, with a vector of length 1 each; a search compares with all of them.

    Several threads may search at once; while one adds or deletes, no other may use the index. A
    call that fails, in the embedder for example, leaves the index as it was.

    Args:
        embedder: turns chunks and queries into vectors.
    """

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self.corpus: Corpus | None = None
        self._chunks: dict[str, Chunk] = {}  # in the order of their vectors
        self._vectors: Any = None  # of faiss

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """All chunks, in the order they were added."""
        return tuple(self._chunks.values())

    def __len__(self) -> int:
        return len(self._chunks)

    def __contains__(self, chunk_id: object) -> bool:
        return chunk_id in self._chunks

    def add(self, chunks: Iterable[Chunk]) -> int:
        """Embed and add chunks; those whose id is here already are left out.

        Returns:
            How many were added.

        Raises:
            ConfigError: the embedder returned something else than unit vectors.
        """
        new = {chunk.id: chunk for chunk in chunks if chunk.id not in self._chunks}
        return self.sync([*self._chunks.values(), *new.values()]).added

    def delete(self, ids: Iterable[str] = (), *, source: str | None = None) -> int:
        """Remove chunks by id, or all chunks of a source, or both.

        Returns:
            How many were here and were removed.

        Raises:
            ConfigError: `ids` is a single string.
        """
        if isinstance(ids, str):
            raise ConfigError(f"ids must be a list of ids, got {ids!r}.")
        gone = set(ids)
        return self.sync(
            chunk
            for chunk in self._chunks.values()
            if chunk.id not in gone and (source is None or chunk.source != source)
        ).removed

    def sync(self, chunks: Iterable[Chunk]) -> Changes:
        """Make these the chunks of the index, in this order.

        Texts that are here already keep their vectors; new ones are embedded.

        Raises:
            ConfigError: as in :meth:`add`.
        """
        wanted = {chunk.id: chunk for chunk in chunks}
        texts = [chunk.render() for chunk in wanted.values()]
        rows = {chunk.render(): row for row, chunk in enumerate(self._chunks.values())}
        new = [*dict.fromkeys(text for text in texts if text not in rows)]
        vectors = self._embed(new) if new else None
        if self._vectors is not None:
            old = self._vectors.reconstruct_n(0, self._vectors.ntotal)
            vectors = old if vectors is None else np.concatenate([old, vectors])
        rows |= {text: row for row, text in enumerate(new, start=len(self._chunks))}
        before, self._chunks = self._chunks, wanted
        if vectors is not None:
            self._vectors = _faiss().IndexFlatIP(vectors.shape[1])
            self._vectors.add(vectors[[rows[text] for text in texts]])
        kept = sum(
            id_ in before and before[id_].render() == text
            for id_, text in zip(wanted, texts, strict=True)
        )
        if (kept, kept) != (len(wanted), len(before)):
            self.corpus = None
        return Changes(added=len(wanted) - kept, kept=kept, removed=len(before) - kept)

    def search(self, query: str | NDArray[np.float32], k: int = 20) -> list[Hit]:
        """The `k` chunks closest to a text or a vector [dimension], best first.

        Fewer come back where the index holds fewer.

        Raises:
            ConfigError: `k` is below 1, or the query is empty or of another dimension.
        """
        if isinstance(query, str):
            return self.search_many([query], k)[0]
        return self.search_many(np.asarray(query)[None], k)[0]

    def search_many(
        self, queries: Sequence[str] | NDArray[np.float32], k: int = 20
    ) -> list[list[Hit]]:
        """:meth:`search` for several texts, or vectors [queries, dimension], at once."""
        if not is_whole(k, 1):
            raise ConfigError(f"k must be a whole number, at least 1, got {k!r}.")
        if isinstance(queries, np.ndarray):
            vectors = _normalised(queries)
        elif all(isinstance(query, str) and query.strip() for query in queries):
            vectors = _normalised(embed_questions(self.embedder, queries))
        else:
            raise ConfigError("The query is empty. Ask for something.")
        if not self._chunks:
            return [[] for _ in vectors]
        if vectors.shape[1] != self._vectors.d:
            raise ConfigError(
                f"Vectors should have the length {self._vectors.d}, got {vectors.shape[1]}."
            )
        chunks = self.chunks
        scores, rows = self._vectors.search(vectors, min(k, len(chunks)))
        return [
            # Equal scores in the order of the chunks.
            [Hit(chunks[row], float(score)) for score, row in sorted(pairs, key=_best_first)]
            for pairs in (zip(*both, strict=True) for both in zip(scores, rows, strict=True))
        ]

    def save(self, folder: str | Path) -> None:
        """Save the index in a folder of its own, in place of the one that is there.

        A process that is stopped meanwhile leaves what was there, or the new index, whole: the
        manifest, which names the other two files, is written last.

        Args:
            folder: made if it is not there.

        Raises:
            OutputWriteError: no permission, no space, or a folder that holds something else.
        """
        path = Path(folder)
        check_index_folder(path)
        token = uuid4().hex[:16]
        names = {"vectors": f"vectors-{token}.faiss", "chunks": f"chunks-{token}.jsonl"}
        manifest = {
            "format": _FORMAT,
            "version": _VERSION,
            "embedder": self.embedder.name,
            "fingerprint": fingerprint_of(self.embedder),
            **names,
            "corpus": None if self.corpus is None else asdict(self.corpus),
        }
        try:
            lines = [json.dumps(asdict(it), allow_nan=False) for it in self._chunks.values()]
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"Metadata of a chunk cannot be saved as JSON ({error}). Keep text, finite "
                "numbers, lists and dictionaries."
            ) from error
        vectors = self._vectors or _faiss().IndexFlatIP(self.embedder.dimension)
        contents = {
            names["vectors"]: _faiss().serialize_index(vectors).tobytes(),
            names["chunks"]: "".join(f"{line}\n" for line in lines).encode(),
        }
        try:
            write_files(path, contents)
            write_files(path, {MANIFEST: json.dumps(manifest, indent=2).encode()})
            for old in [*path.glob("vectors-*.faiss"), *path.glob("chunks-*.jsonl")]:
                if old.name not in contents:
                    old.unlink()
        except OSError as error:
            for name in contents:
                with suppress(OSError):
                    (path / name).unlink()
            cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
            raise OutputWriteError(
                f"The index cannot be saved in {str(folder)!r} ({reason(cause)}). Free space, "
                "correct the permissions, or choose another folder "
                "(--index; of rag-middle index --out). XDG_CACHE_HOME moves the default one."
            ) from error

    @classmethod
    def load(cls, folder: str | Path, embedder: Embedder | None = None) -> FaissIndex:
        """A saved index.

        Args:
            folder: where it was saved.
            embedder: the one it was made with; by default the default embedder.

        Raises:
            FileFormatError: there is no index, it is damaged or of another version, or was made
                with another embedder, or with other files of this one.
        """
        path = Path(folder)
        embedder = SentenceTransformerEmbedder() if embedder is None else embedder
        manifest = _read_manifest(path, embedder)
        index = cls(embedder)
        try:
            content = np.frombuffer((path / manifest["vectors"]).read_bytes(), dtype=np.uint8)
            index._vectors = _faiss().deserialize_index(content)
            with (path / manifest["chunks"]).open(encoding="utf-8") as lines:
                chunks = [Chunk(**json.loads(line)) for line in lines]
            index._chunks = {chunk.id: chunk for chunk in chunks}
            index.corpus = _corpus(manifest)
            if len(index) != index._vectors.ntotal:
                raise ValueError(f"{len(index)} chunks and {index._vectors.ntotal} vectors")
        except (OSError, RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
            why = " ".join(str(error).split())[:200]
            raise FileFormatError(
                f"The index {str(folder)!r} is damaged ({why}). {_REBUILD}"
            ) from error
        return index

    def _embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = np.asarray(self.embedder.embed(texts))
        expected = (len(texts), self.embedder.dimension)
        lengths = np.linalg.norm(vectors, axis=-1)
        # Written so that NaN is refused too.
        if vectors.shape != expected or not np.all(np.abs(lengths - 1) < _NORM_TOLERANCE):
            raise ConfigError(
                f"The embedder {self.embedder.name} should return vectors of shape {expected} and "
                f"of length 1, got shape {vectors.shape} and lengths from {lengths.min():.3g} to "
                f"{lengths.max():.3g}. Divide each by its length."
            )
        return _normalised(vectors)


def saved_corpus(folder: str | Path, embedder: Embedder) -> Corpus | None:
    """What the index in `folder` was built from, without reading the rest of it; None for none.

    Raises:
        FileFormatError: as `FaissIndex.load`, like `FileFormatError`.
    """
    if not (Path(folder) / MANIFEST).exists():
        return None
    corpus = _corpus(_read_manifest(Path(folder), embedder))
    if corpus is None:
        raise FileFormatError(
            f"The index {str(folder)!r} was changed after it was built, and its chunks would be "
            "lost. Choose another folder for the index of these documents, or replace it with "
            "rebuild=True (--rebuild).",
        )
    return corpus


def check_index_folder(folder: Path) -> None:
    """Raise `OutputWriteError` where a folder holds something else than an index."""
    others = [path.name for path in folder.glob("*") if not _FILES.fullmatch(path.name)]
    if others:
        raise OutputWriteError(
            f"The folder {str(folder)!r} holds something else ({others[0]!r}): choose an empty or "
            "a new folder for the index (--index; of rag-middle index --out)."
        )


def _read_manifest(folder: Path, embedder: Embedder) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_bytes())
        if (manifest["format"], manifest["version"]) != (_FORMAT, _VERSION):
            raise ValueError("it is of another format or of an earlier version")
        name, fingerprint = manifest["embedder"], manifest["fingerprint"]
        _ = manifest["vectors"], manifest["chunks"], manifest["corpus"]
    except FileNotFoundError as error:
        raise FileFormatError(
            f"There is no index in {str(folder)!r}. Build one with "
            "build_index(documents, folder) (rag-middle index)."
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileFormatError(
            f"The index {str(folder)!r} cannot be read ({error}). {_REBUILD}"
        ) from error
    if name != embedder.name:
        raise FileFormatError(
            f"The index {str(folder)!r} was made with the embedder {name}, not with "
            f"{embedder.name}. Pass that embedder, embedder={name!r} (--embedder {name}), or "
            "build the index anew: rebuild=True (--rebuild).",
        )
    now = fingerprint_of(embedder)
    if fingerprint != now and None not in (fingerprint, now):
        raise FileFormatError(
            f"The index {str(folder)!r} was made with other files of the embedder {name}. Put "
            "the old ones back, or build the index anew: rebuild=True (--rebuild).",
        )
    return manifest


def _corpus(manifest: dict[str, Any]) -> Corpus | None:
    if manifest["corpus"] is None:
        return None
    skipped = tuple(Skipped(**it) for it in manifest["corpus"].pop("skipped"))
    return Corpus(**manifest["corpus"], skipped=skipped)


def _best_first(pair: tuple[float, int]) -> tuple[float, int]:
    return -pair[0], pair[1]


def _normalised(vectors: NDArray[Any]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    if vectors.ndim != 2 or not np.all(np.isfinite(lengths) & (lengths > 0)):
        raise ConfigError("A vector is zero or not finite, or of another shape.")
    return np.ascontiguousarray(vectors / lengths, dtype=np.float32)


def _faiss() -> Any:
    return require("faiss", package="faiss-cpu", what="The vector index")
