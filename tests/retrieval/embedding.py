"""An embedder for tests: words, hashed."""

import re
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class HashingEmbedder:
    """Counts words in `dimension` buckets; texts that share words are close.

    Args:
        seed: of the hash; another one stands for other weights.

    Attributes:
        embedded: every text that was embedded, in order.
    """

    def __init__(self, dimension: int = 64, name: str = "hashing", seed: int = 0) -> None:
        self.name = name
        self.seed = seed
        self.dimension = dimension
        self.embedded: list[str] = []

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.embedded.extend(texts)
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in zip(vectors, texts, strict=True):
            for word in re.findall(r"\w+", text.lower()) or [text]:
                row[zlib.crc32(word.encode(), self.seed) % self.dimension] += 1
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors
