"""Documents and their vectors, searched by meaning: a flat faiss index on disk and in memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rag_middle.documents import Document
from rag_middle.errors import ConfigError, FileFormatError, OutputWriteError
from rag_middle.extras import require
from rag_middle.files import expanded, write_files
from rag_middle.plain_data import is_whole
from rag_middle.retrieval.embedders import (
    Embedder,
    SentenceTransformerEmbedder,
    embed_questions,
)
from rag_middle.retrieval.readers import MANIFEST, is_index_folder
from rag_middle.retrieval.splitting import content_id

_FORMAT, INDEX_VERSION = "rag-middle-index", 4
_REBUILD = "Build it anew: rebuild=True (--rebuild)."
_AT_ONCE = 256  # texts between two reports of progress
_SAME_COSINE = 0.99  # of the vectors of one text: half precision and other batches change less


class Changes(NamedTuple):
    """What was done to an index, in documents."""

    added: int
    kept: int
    removed: int


class FaissIndex:
    """Documents under their ids, with a vector each; a search compares with all of them.

    Several threads may search at once; while one adds or deletes, no other may use the index. A
    call that fails, in the embedder for example, leaves the index as it was.

    Args:
        embedder: turns documents and questions into vectors.

    Attributes:
        built_from: what `build_index` made it of; None once it was changed by hand.
    """

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self.built_from: Mapping[str, Any] | None = None
        self._documents: dict[str | None, Document] = {}  # in the order of their vectors
        self._vectors: Any = None  # of faiss, of length 1
        self._is_unchecked = False  # after loading: does the embedder still give these vectors?

    @property
    def documents(self) -> tuple[Document, ...]:
        """All documents, in the order they were added."""
        return tuple(self._documents.values())

    def __len__(self) -> int:
        return len(self._documents)

    def __contains__(self, document_id: object) -> bool:
        return document_id in self._documents

    def add(self, documents: Iterable[Document]) -> list[str]:
        """Embed and add documents; one whose id is here already replaces it.

        Returns:
            Their ids, in order. A document without one is given one that depends on its content, so
            that equal ones are the same.

        Raises:
            ConfigError: different documents have one id, or the embedder returned something else
                than vectors.
        """
        new: dict[str | None, Document] = {}
        ids = []
        for document in documents:
            content = document.text, document.title, repr(sorted(document.metadata.items()))
            ids.append(document.id or content_id(*content))
            document = replace(document, id=ids[-1])
            if new.setdefault(ids[-1], document) != document:
                raise ConfigError(
                    f"Two different documents have the id {ids[-1]!r}. Give each an id of its own, "
                    "or none: parts of one document that a splitter made, for instance."
                )
        self.sync({**self._documents, **new}.values())
        return ids

    def delete(self, ids: Iterable[str] = (), *, source: str | None = None) -> int:
        """Remove documents by id, or all of a source, or both.

        Returns:
            How many were here and were removed.

        Raises:
            ConfigError: `ids` is a single string.
        """
        if isinstance(ids, str):
            raise ConfigError(f"ids must be a list of ids, got {ids!r}.")
        gone = set(ids)
        kept = [it for it in self.documents if it.id not in gone]
        return self.sync(
            it for it in kept if source is None or it.metadata.get("source") != source
        ).removed

    def sync(
        self, documents: Iterable[Document], progress: Callable[[int, int], None] | None = None
    ) -> Changes:
        """Make these, which have ids, the documents of the index, in this order.

        Texts that are here already keep their vectors; new ones are embedded.

        Args:
            progress: called with the texts embedded so far and all that are to be.

        Raises:
            ConfigError: as in :meth:`add`.
            FileFormatError: as in :meth:`search`.
        """
        wanted = {document.id: document for document in documents}
        texts = {id_: document.render() for id_, document in wanted.items()}
        before = {id_: document.render() for id_, document in self._documents.items()}
        rows = {text: row for row, text in enumerate(before.values())}
        new = [*dict.fromkeys(text for text in texts.values() if text not in rows)]
        rows |= {text: row for row, text in enumerate(new, start=len(before))}
        parts = [] if self._vectors is None else [self._vectors.reconstruct_n(0, len(before))]
        if new:
            self._check_vectors()
        for start in range(0, len(new), _AT_ONCE):
            some = new[start : start + _AT_ONCE]
            parts.append(self._unit(self.embedder.embed(some), len(some)))
            if progress is not None:
                progress(min(start + _AT_ONCE, len(new)), len(new))
        if parts:
            vectors = np.concatenate(parts)[[rows[text] for text in texts.values()]]
            self._vectors = _faiss().IndexFlatIP(vectors.shape[1])
            self._vectors.add(vectors)
        self._documents = wanted
        kept = len(texts.items() & before.items())
        if kept < max(len(texts), len(before)):
            self.built_from = None
        return Changes(added=len(texts) - kept, kept=kept, removed=len(before) - kept)

    def search(self, question: str, k: int = 20) -> list[Document]:
        """The `k` documents closest to a question, best first; `metadata` has their ``score``.

        That is the cosine. Fewer come back where the index holds fewer; equal scores are in the
        order of the documents.

        Raises:
            ConfigError: `k` is below 1, or the question is empty.
            FileFormatError: the index was loaded, and the embedder gives other vectors than then.
        """
        check_top_k(k)
        check_question(question)
        if not self._documents:
            return []
        self._check_vectors()
        vectors = self._unit(embed_questions(self.embedder, [question]), 1)
        documents = self.documents
        [scores], [rows] = self._vectors.search(vectors, min(k, len(documents)))
        best = sorted(zip(-scores, rows, strict=True))
        scored = ((documents[row], float(-distance)) for distance, row in best)
        return [replace(it, metadata={**it.metadata, "score": score}) for it, score in scored]

    def save(self, folder: str | Path) -> None:
        """Save the index in a folder of its own, in place of the one that is there.

        A process that is stopped meanwhile leaves what was there, or the new index, whole: the
        manifest, which names the other two files, is written last.

        Args:
            folder: made if it is not there.

        Raises:
            ConfigError: metadata cannot be saved as JSON.
            OutputWriteError: no permission, no space, or a folder that holds something else.
        """
        path = expanded(folder)
        check_index_folder(path)
        names = [field.name for field in fields(Document)]
        try:
            # Not `asdict`, which copies all that metadata holds.
            texts = ({name: getattr(it, name) for name in names} for it in self.documents)
            lines = [json.dumps(text, allow_nan=False) + "\n" for text in texts]
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"Metadata of a document cannot be saved as JSON ({error}). Keep text, finite "
                "numbers, lists and dictionaries."
            ) from error
        vectors = self._vectors or _faiss().IndexFlatIP(self.embedder.dimension)
        contents = [_faiss().serialize_index(vectors).tobytes(), "".join(lines).encode()]
        digest = hashlib.sha256(b"".join(contents)).hexdigest()[:16]
        names = [f"vectors-{digest}.faiss", f"chunks-{digest}.jsonl"]
        manifest = {
            "format": _FORMAT,
            "version": INDEX_VERSION,
            "embedder": self.embedder.name,
            "files": names,
            "built_from": self.built_from,
        }
        files = dict(zip(names, contents, strict=True))
        write_files(path, {**files, MANIFEST: json.dumps(manifest, indent=2).encode()})
        for file in [*path.glob("vectors-*.faiss"), *path.glob("chunks-*.jsonl")]:
            if file.name not in names:
                file.unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: str | Path, embedder: Embedder | None = None) -> FaissIndex:
        """A saved index.

        Args:
            folder: where it was saved.
            embedder: the one it was made with; by default the default embedder.

        Raises:
            FileFormatError: there is no index, it is damaged or of another version, or it was made
                with another embedder.
        """
        path = expanded(folder)
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
            made_with = manifest["embedder"]
            vectors, lines = (path / name for name in manifest["files"])
            content = np.frombuffer(vectors.read_bytes(), dtype=np.uint8)
            index._vectors = _faiss().deserialize_index(content)
            texts = lines.read_text(encoding="utf-8").splitlines()
            documents = [Document(**json.loads(text)) for text in texts]
            index._documents = {document.id: document for document in documents}
            index.built_from = manifest["built_from"]
            if len(index) != index._vectors.ntotal:
                raise ValueError(f"{len(index)} documents and {index._vectors.ntotal} vectors")
        except (OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
            why = " ".join(str(error).split())[:200]
            raise FileFormatError(
                f"The index {str(folder)!r} is damaged ({why}). {_REBUILD}"
            ) from error
        if made_with != index.embedder.name:
            raise FileFormatError(
                f"The index {str(folder)!r} was made with the embedder {made_with}, not with "
                f"{index.embedder.name}. Pass that embedder (--embedder {made_with}). {_REBUILD}"
            )
        index._is_unchecked = len(index) > 0
        return index

    def _check_vectors(self) -> None:
        """Refuse other weights under the name of those that the index was made with."""
        if self._is_unchecked:
            vector = self._unit(self.embedder.embed([self.documents[0].render()]), 1)[0]
            if vector @ self._vectors.reconstruct(0) < _SAME_COSINE:
                raise FileFormatError(
                    f"The embedder {self.embedder.name} gives other vectors than those of the "
                    f"index: its files have changed. {_REBUILD}"
                )
            self._is_unchecked = False

    def _unit(self, vectors: NDArray[Any], count: int) -> NDArray[np.float32]:
        """The vectors [count, dimension], divided by their lengths."""
        shape = (count, self.embedder.dimension)
        lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
        is_finite = np.all(np.isfinite(lengths) & (lengths > 0))
        if vectors.shape != shape or not is_finite:
            raise ConfigError(
                f"The embedder {self.embedder.name} should give vectors of shape {shape}, finite "
                f"and not zero; got shape {vectors.shape} and lengths from {lengths.min():.3g} to "
                f"{lengths.max():.3g}. Leave empty documents out, or use another embedder."
            )
        return np.ascontiguousarray(vectors / lengths, dtype=np.float32)


@dataclass(frozen=True, kw_only=True)
class Retriever:
    """Finds the documents that a prompt needs.

    Attributes:
        index: where to look.
        top_k: documents to return; fewer come where the index holds fewer.
        min_score: documents below this cosine are left out; None keeps all.

    Example:
        >>> documents = Retriever(index=index, top_k=10)("Who founded the town?")
        >>> prompt = ContextPrompt(documents=documents, suffix="Question: Who founded the town?")
    """

    index: FaissIndex
    top_k: int = 20
    min_score: float | None = None

    def __post_init__(self) -> None:
        check_top_k(self.top_k)

    def __call__(self, question: str, *, top_k: int | None = None) -> list[Document]:
        """The best documents, best first, as from :meth:`FaissIndex.search`."""
        documents = self.index.search(question, self.top_k if top_k is None else top_k)
        least = -np.inf if self.min_score is None else self.min_score
        return [document for document in documents if document.metadata["score"] >= least]


def check_question(question: object) -> None:
    """Raise `ConfigError` unless `question` asks something."""
    if not isinstance(question, str) or not question.strip():
        raise ConfigError(f"The question is empty: ask something; got {question!r}.")


def check_top_k(top_k: object) -> None:
    """Raise `ConfigError` unless `top_k` is a number of documents."""
    if not is_whole(top_k, 1):
        raise ConfigError(f"top_k must be a whole number of documents, at least 1, got {top_k!r}.")


def check_index_folder(folder: Path) -> None:
    """Raise `OutputWriteError` where a folder holds something else than an index."""
    others = [path.name for path in folder.glob("[!.]*")]
    if others and not is_index_folder(folder):
        raise OutputWriteError(
            f"The folder {str(folder)!r} holds something else ({min(others)!r}): choose an empty "
            "or a new folder for the index (--index; of rag-middle index --out)."
        )


def _faiss() -> Any:
    return require("faiss", package="faiss-cpu", what="The vector index")
