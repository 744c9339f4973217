"""Save a second index over a first one and die at the n-th step on disk, as a kill would.

Arguments: folder, n. Exit status 9: died; 0: there were fewer steps.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from rag_middle.retrieval import FaissIndex, storage
from tests.retrieval.embedding import HashingEmbedder

left = int(sys.argv[2])


def deadly(call: Any) -> Any:
    def step(*arguments: Any, **options: Any) -> Any:
        global left
        if left == 0:
            os._exit(9)
        left -= 1
        return call(*arguments, **options)

    return step


def half(path: Path, content: bytes) -> int:
    """Write, and stop in the middle if it is time to."""
    Path.open(path, "wb").write(content[: len(content) // 2])
    deadly(lambda: None)()
    return write_bytes(path, content)


index = FaissIndex.load(sys.argv[1], HashingEmbedder())
index.delete(source="old.txt")
write_bytes = Path.write_bytes
Path.write_bytes = half  # type: ignore[method-assign, assignment]
Path.unlink = deadly(Path.unlink)  # type: ignore[method-assign]
os.fsync = deadly(os.fsync)
os.replace = deadly(os.replace)
storage.faiss().write_index = deadly(storage.faiss().write_index)
index.save(sys.argv[1])
