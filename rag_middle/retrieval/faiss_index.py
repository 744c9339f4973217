"""Chunks and their vectors, searched by meaning: a flat faiss index on disk and in memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from rag_middle.errors import (
    ConfigError,
    FileFormatError,
    OutputWriteError,
)
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

_FORMAT, _VERSION = "rag-middle-index", 3
_REBUILD = "Build it anew: rebuild=True (--rebuild)."


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
        files: as of `Loaded`.
        splitter: settings of the splitter; None for the default one.
        skipped: what was left out.
    """

    files: Mapping[str, str] = field(hash=False)
    splitter: Mapping[str, Any] | None = field(hash=False)
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
            ConfigError: the embedder returned something else than vectors.
        """
        new = {chunk.id: chunk for chunk in chunks if chunk.id not in self._chunks}
        return self.sync([*self.chunks, *new.values()]).added

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
        kept = [it for it in self.chunks if it.id not in gone]
        return self.sync(it for it in kept if source is None or it.source != source).removed

    def sync(self, chunks: Iterable[Chunk]) -> Changes:
        """Make these the chunks of the index, in this order.

        Texts that are here already keep their vectors; new ones are embedded.

        Raises:
            ConfigError: as in :meth:`add`.
        """
        wanted = {chunk.id: chunk for chunk in chunks}
        texts = {id_: chunk.render() for id_, chunk in wanted.items()}
        before = {id_: chunk.render() for id_, chunk in self._chunks.items()}
        rows = {text: row for row, text in enumerate(before.values())}
        new = [*dict.fromkeys(text for text in texts.values() if text not in rows)]
        rows |= {text: row for row, text in enumerate(new, start=len(before))}
        parts = [] if self._vectors is None else [self._vectors.reconstruct_n(0, len(before))]
        if new:
            shape = (len(new), self.embedder.dimension)
            parts.append(self._unit(self.embedder.embed(new), shape))
        self._chunks = wanted
        if parts:
            vectors = np.concatenate(parts)[[rows[text] for text in texts.values()]]
            self._vectors = _faiss().IndexFlatIP(vectors.shape[1])
            self._vectors.add(vectors)
        kept = len(texts.items() & before.items())
        if kept < max(len(texts), len(before)):
            self.corpus = None
        return Changes(added=len(texts) - kept, kept=kept, removed=len(before) - kept)

    def search(self, query: str | NDArray[np.float32], k: int = 20) -> list[Hit]:
        """The `k` chunks closest to a text or a vector [dimension], best first.

        Fewer come back where the index holds fewer; equal scores are in the order of the chunks.

        Raises:
            ConfigError: `k` is below 1, the query is empty, or the vector of another dimension,
                zero or not finite.
        """
        if not is_whole(k, 1):
            raise ConfigError(f"k must be a whole number, at least 1, got {k!r}.")
        if isinstance(query, str):
            if not query.strip():
                raise ConfigError("The query is empty. Ask for something.")
            [query] = embed_questions(self.embedder, [query])
        if not self._chunks:
            return []
        vectors = self._unit(np.asarray(query)[None], (1, self._vectors.d))
        chunks = self.chunks
        [scores], [found] = self._vectors.search(vectors, min(k, len(chunks)))
        pairs = sorted(zip(scores, found, strict=True), key=lambda pair: (-pair[0], pair[1]))
        return [Hit(chunks[row], float(score)) for score, row in pairs]

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
            lines = [json.dumps(asdict(chunk), allow_nan=False) + "\n" for chunk in self.chunks]
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"Metadata of a chunk cannot be saved as JSON ({error}). Keep text, finite "
                "numbers, lists and dictionaries."
            ) from error
        vectors = self._vectors or _faiss().IndexFlatIP(self.embedder.dimension)
        contents = {
            names["vectors"]: _faiss().serialize_index(vectors).tobytes(),
            names["chunks"]: "".join(lines).encode(),
        }
        try:
            write_files(path, contents)
            write_files(path, {MANIFEST: json.dumps(manifest, indent=2).encode()})
        except OutputWriteError as error:
            cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
            raise OutputWriteError(
                f"The index cannot be saved in {str(folder)!r} ({reason(cause)}). Free space, "
                "correct the permissions, or choose another folder "
                "(--index; of rag-middle index --out). XDG_CACHE_HOME moves the default one."
            ) from error
        for old in [*path.glob("vectors-*.faiss"), *path.glob("chunks-*.jsonl")]:
            if old.name not in contents:
                old.unlink()

    @classmethod
    def load(cls, folder: str | Path, embedder: Embedder | None = None) -> FaissIndex:
        """A saved index.

        Args:
            folder: where it was saved.
            embedder: the one it was made with; by default the default embedder.

        Raises:
            FileFormatError: there is no index, it is damaged or of another version, or it was made
                with another embedder, or with other files of this one.
        """
        path = Path(folder)
        index = cls(SentenceTransformerEmbedder() if embedder is None else embedder)
        manifest = _read_manifest(path, index.embedder)
        try:
            content = np.frombuffer((path / manifest["vectors"]).read_bytes(), dtype=np.uint8)
            index._vectors = _faiss().deserialize_index(content)
            lines = (path / manifest["chunks"]).read_text(encoding="utf-8").splitlines()
            chunks = [Chunk(**json.loads(line)) for line in lines]
            index._chunks = {chunk.id: chunk for chunk in chunks}
            index.corpus = _corpus(manifest)
            if len(index) != index._vectors.ntotal:
                raise ValueError(f"{len(index)} chunks and {index._vectors.ntotal} vectors")
        except (OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
            why = " ".join(str(error).split())[:200]
            raise FileFormatError(
                f"The index {str(folder)!r} is damaged ({why}). {_REBUILD}"
            ) from error
        return index

    def _unit(self, vectors: NDArray[Any], shape: tuple[int, int]) -> NDArray[np.float32]:
        """The vectors, divided by their lengths."""
        lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
        if vectors.shape != shape or not np.all(np.isfinite(lengths) & (lengths > 0)):
            raise ConfigError(
                f"The embedder {self.embedder.name} should give vectors of shape {shape}, finite "
                f"and not zero; got shape {vectors.shape} and lengths from {lengths.min():.3g} to "
                f"{lengths.max():.3g}."
            )
        return np.ascontiguousarray(vectors / lengths, dtype=np.float32)


def check_index_folder(folder: Path) -> None:
    """Raise `OutputWriteError` where a folder holds something else than an index."""
    own = (MANIFEST, "vectors-", "chunks-", ".")
    others = [path.name for path in folder.glob("*") if not path.name.startswith(own)]
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
            f"{embedder.name}. Pass that embedder (--embedder {name}). {_REBUILD}"
        )
    now = fingerprint_of(embedder)
    if fingerprint != now and None not in (fingerprint, now):
        raise FileFormatError(
            f"The index {str(folder)!r} was made with other files of the embedder {name}, whose "
            f"vectors differ. {_REBUILD}"
        )
    return manifest


def _corpus(manifest: dict[str, Any]) -> Corpus | None:
    if manifest["corpus"] is None:
        return None
    skipped = tuple(Skipped(**it) for it in manifest["corpus"].pop("skipped"))
    return Corpus(**manifest["corpus"], skipped=skipped)


def _faiss() -> Any:
    return require("faiss", package="faiss-cpu", what="The vector index")
