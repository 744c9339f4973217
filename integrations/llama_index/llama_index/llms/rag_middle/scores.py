"""Stores whose scores are distances: the best document then has the lowest score."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from llama_index.core.schema import NodeWithScore

__all__ = ["DistanceScoresWarning", "warn_about_distances"]

_INNER_PRODUCT = 0  # faiss.METRIC_INNER_PRODUCT; the one metric of which more is better


class DistanceScoresWarning(UserWarning):
    """Scores are distances, and what sorts by score sorts the wrong way round."""


def warn_about_distances(source: Any) -> bool:
    """Warn where scores are distances.

    Postprocessors such as ``LongContextReorder`` and ``SimilarityPostprocessor`` take higher scores
    for better ones. With distances they put the best document into the middle, or drop it.

    Args:
        source: a vector store on faiss, a faiss index, or nodes as a retriever returned them, best
            first.

    Returns:
        Whether it warned.

    Raises:
        TypeError: `source` is none of these.
    """
    if isinstance(source, Sequence) and all(isinstance(n, NodeWithScore) for n in source):
        scores = [node.score for node in source if node.score is not None]
        rising = all(a <= b for a, b in pairwise(scores)) and len(set(scores)) > 1
        return rising and _warn("The best node has the lowest score")
    index = getattr(source, "client", source)
    metric = getattr(index, "metric_type", None)
    if metric is None:
        raise TypeError(
            f"A FaissVectorStore, a faiss index or retrieved nodes are expected, got "
            f"{type(source).__name__}. For another store pass retriever.retrieve(question)."
        )
    if metric == _INNER_PRODUCT:
        return False
    return _warn(f"This index ({type(index).__name__}) returns distances as scores")


def _warn(what: str) -> bool:
    warnings.warn(
        f"{what}, so what sorts by score (LongContextReorder, SimilarityPostprocessor) works the "
        "wrong way round. Use faiss.IndexFlatIP with embeddings of length 1: its scores are cosine "
        "similarities.",
        DistanceScoresWarning,
        stacklevel=3,
    )
    return True
