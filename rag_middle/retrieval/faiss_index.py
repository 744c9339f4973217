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

from rag_middle.errors import ConfigError, FileFormatError, OutputWriteError
from rag_middle.extras import require
from rag_middle.files import expanded, write_files
from rag_middle.retrieval.embedders import (
    Embedder,
    SentenceTransformerEmbedder,
    embed_questions,
)
from rag_middle.retrieval.readers import MANIFEST, Skipped
from rag_middle.retrieval.retriever import check_question, check_top_k
from rag_middle.retrieval.splitting import Chunk

_FORMAT, INDEX_VERSION = "rag-middle-index", 3
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
        check_top_k(k)
        if isinstance(query, str):
            check_question(query)
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
        path = expanded(folder)
        check_index_folder(path)
        token = uuid4().hex[:16]
        names = {"vectors": f"vectors-{token}.faiss", "chunks": f"chunks-{token}.jsonl"}
        manifest = {
            "format": _FORMAT,
            "version": INDEX_VERSION,
            "embedder": self.embedder.name,
            "fingerprint": getattr(self.embedder, "fingerprint", None),
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
            MANIFEST: json.dumps(manifest, indent=2).encode(),  # replaces the old one last
        }
        # Listed before: another process may be about to name what it writes meanwhile.
        old = [*path.glob("vectors-*.faiss"), *path.glob("chunks-*.jsonl")]
        write_files(path, contents)
        named = (path / MANIFEST).read_text()  # perhaps already that of another process
        for file in old:
            if file.name not in named:
                file.unlink(missing_ok=True)

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
        if not (path / MANIFEST).exists():
            raise FileFormatError(
                f"There is no index in {str(folder)!r}. Build one with "
                "build_index(documents, folder) (rag-middle index)."
            )
        index = cls(SentenceTransformerEmbedder() if embedder is None else embedder)
        try:
            manifest = json.loads((path / MANIFEST).read_bytes())
            if (manifest["format"], manifest["version"]) != (_FORMAT, INDEX_VERSION):
                raise ValueError("it is of another format or of an earlier version")
            index._check_embedder(folder, manifest["embedder"], manifest["fingerprint"])
            content = np.frombuffer((path / manifest["vectors"]).read_bytes(), dtype=np.uint8)
            index._vectors = _faiss().deserialize_index(content)
            lines = (path / manifest["chunks"]).read_text(encoding="utf-8").splitlines()
            chunks = [Chunk(**json.loads(line)) for line in lines]
            index._chunks = {chunk.id: chunk for chunk in chunks}
            if corpus := manifest["corpus"]:
                skipped = tuple(Skipped(**it) for it in corpus.pop("skipped"))
                index.corpus = Corpus(**corpus, skipped=skipped)
            if len(index) != index._vectors.ntotal:
                raise ValueError(f"{len(index)} chunks and {index._vectors.ntotal} vectors")
        except FileFormatError:
            raise
        except (OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
            why = " ".join(str(error).split())[:200]
            raise FileFormatError(
                f"The index {str(folder)!r} is damaged ({why}). {_REBUILD}"
            ) from error
        return index

    def _check_embedder(self, folder: str | Path, name: str, fingerprint: str | None) -> None:
        if name != self.embedder.name:
            raise FileFormatError(
                f"The index {str(folder)!r} was made with the embedder {name}, not with "
                f"{self.embedder.name}. Pass that embedder (--embedder {name}). {_REBUILD}"
            )
        now = getattr(self.embedder, "fingerprint", None)
        if fingerprint != now and None not in (fingerprint, now):
            raise FileFormatError(
                f"The index {str(folder)!r} was made with other files of the embedder {name}, "
                f"whose vectors differ. {_REBUILD}"
            )

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


def _faiss() -> Any:
    return require("faiss", package="faiss-cpu", what="The vector index")
