"""Unit vectors under integer keys, searched by inner product with faiss.

Two kinds: ``flat`` compares a query with every vector; ``ivf`` groups vectors around centroids and
compares only with the groups closest to the query. Both add and delete without a rebuild.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from rag_middle.errors import RetrievalConfigError
from rag_middle.extras import require
from rag_middle.wording import Argument

__all__ = ["FLAT_LIMIT", "Kind", "VectorStore", "check_kind", "faiss", "is_store"]

Kind = Literal["auto", "flat", "ivf"]
Vectors = NDArray[np.float32]  # [n, dimension]

FLAT_LIMIT = 100_000
"""With kind ``auto``, more vectors than this are grouped."""

_VECTORS_PER_LIST = 39  # at least so many: faiss advises it for training
_PROBED = 4  # one in so many groups is searched: fewer lose questions far from any passage
_SPARE = 4  # enough groups are searched to hold so many times the vectors asked for


def faiss() -> Any:
    """The faiss library.

    Raises:
        MissingExtraError: it is not installed.
    """
    return require("faiss", package="faiss-cpu", what="The vector index")


def check_kind(kind: str) -> None:
    """Raises RetrievalConfigError where `kind` is none."""
    if kind not in get_args(Kind):
        raise RetrievalConfigError(
            Argument("kind"), f" must be one of {', '.join(get_args(Kind))}; got {kind!r}."
        )


def is_store(index: object) -> bool:
    """Whether a faiss index is of a type that :class:`VectorStore` makes."""
    return isinstance(index, faiss().IndexIDMap2 | faiss().IndexIVFFlat)


class VectorStore:
    """The vectors of an index.

    Args:
        kind: ``"auto"`` is flat up to :data:`FLAT_LIMIT` vectors, ``"ivf"`` beyond.
        index: a faiss index that :attr:`index` of another store returned.
    """

    def __init__(self, dimension: int, kind: Kind = "auto", index: Any = None) -> None:
        check_kind(kind)
        self.dimension = dimension
        self.kind = kind
        self.index = self._flat() if index is None else index

    def __len__(self) -> int:
        return int(self.index.ntotal)

    @property
    def grouped(self) -> bool:
        """Whether the vectors are grouped now."""
        return isinstance(self.index, faiss().IndexIVFFlat)

    def add(self, vectors: Vectors, keys: Sequence[int]) -> None:
        """Add vectors [n, dimension] under n new keys."""
        if not keys:
            return
        index = self.index
        total = len(self) + len(keys)
        wants_groups = self.kind == "ivf" or (self.kind == "auto" and total > FLAT_LIMIT)
        if wants_groups and not (self.grouped and int(self.index.nlist) * 2 >= _lists(total)):
            # Built aside and then put in place: an interrupted build changes nothing.
            old_keys = self.keys()
            old_vectors = self._vectors(old_keys)
            index = self._ivf(np.concatenate([old_vectors, vectors]))
            index.add_with_ids(old_vectors, old_keys)
        index.add_with_ids(vectors, np.asarray(keys, dtype=np.int64))
        self.index = index

    def remove(self, keys: Iterable[int]) -> None:
        """Remove the vectors under `keys`."""
        array = np.fromiter(keys, dtype=np.int64)
        if array.size:
            self.index.remove_ids(array)

    def renumber(self, keys: Sequence[int]) -> None:
        """Give the vectors the keys 0, 1, ... in the order of their keys in `keys`."""
        vectors = self._vectors(np.asarray(keys, dtype=np.int64))
        # Aside, as in `add`; groups stay as they are.
        index = faiss().clone_index(self.index) if self.grouped else self._flat()
        index.reset()
        if keys:
            index.add_with_ids(vectors, np.arange(len(keys), dtype=np.int64))
        self.index = index

    def search(self, queries: Vectors, k: int) -> list[list[tuple[int, float]]]:
        """For each of the queries [n, dimension] up to `k` (key, score), best first.

        The score is the inner product. Equal scores come in order of their keys.
        """
        k = min(k, len(self))
        if k == 0:
            return [[] for _ in queries]
        scores, keys = self.index.search(queries, k, params=self._parameters(k))
        if (keys < 0).any():  # the groups searched held fewer: search all
            scores, keys = self.index.search(queries, k, params=self._parameters(len(self)))
        hits = (
            [(int(key), float(score)) for key, score in zip(*row, strict=True)]
            for row in zip(keys, scores, strict=True)
        )
        return [sorted(row, key=lambda hit: (-hit[1], hit[0])) for row in hits]

    def _flat(self) -> Any:
        return faiss().IndexIDMap2(faiss().IndexFlatIP(self.dimension))

    def _ivf(self, training: Vectors) -> Any:
        library = faiss()
        index = library.IndexIVFFlat(
            library.IndexFlatIP(self.dimension),
            self.dimension,
            _lists(len(training)),
            library.METRIC_INNER_PRODUCT,
        )
        index.cp.spherical = True  # centroids of unit vectors have length 1
        index.cp.min_points_per_centroid = 1  # fewer is no reason to write to standard error
        index.train(training)
        index.set_direct_map_type(library.DirectMap.Hashtable)  # to read vectors back
        return index

    def keys(self) -> NDArray[np.int64]:
        """All keys, ascending."""
        library = faiss()
        if not self.grouped:
            return np.sort(library.vector_to_array(self.index.id_map))
        lists = self.index.invlists
        sizes = [lists.list_size(at) for at in range(self.index.nlist)]
        parts = [
            library.rev_swig_ptr(lists.get_ids(at), size).copy()
            for at, size in enumerate(sizes)
            if size
        ]
        return np.sort(np.concatenate(parts)) if parts else np.zeros(0, dtype=np.int64)

    def _vectors(self, keys: NDArray[np.int64]) -> Vectors:
        if not keys.size:
            return np.zeros((0, self.dimension), dtype=np.float32)
        return cast(Vectors, self.index.reconstruct_batch(keys))

    def _parameters(self, k: int) -> Any:
        if not self.grouped:
            return None
        lists = int(self.index.nlist)
        enough = math.ceil(_SPARE * k * lists / len(self))
        probed = max(math.ceil(lists / _PROBED), enough)
        return faiss().SearchParametersIVF(nprobe=min(probed, lists))


def _lists(vectors: int) -> int:
    """Groups for so many vectors: about as many as each will hold."""
    return max(1, min(round(math.sqrt(vectors)), vectors // _VECTORS_PER_LIST))
