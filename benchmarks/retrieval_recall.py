"""How often retrieval finds the passage that answers a question.

Passages go through the package's own loader, splitter, embedder and index; a question counts as
answered at k where one of the first k documents comes from its passage.

    python benchmarks/retrieval_recall.py nq-open-gold.jsonl.gz --out benchmarks/results

The file has a question and its passage per line: {"question", "title", "text", ...}. The one the
results come from is the 2,000 questions of NaturalQuestions-Open with their gold Wikipedia passages
from nelson-liu/lost-in-the-middle at commit 29b8a6d042ce29abccee3db1a73171a107d7e6af.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from reporting import Facts, facts, report

from rag_middle.retrieval import (
    Embedder,
    FaissIndex,
    SentenceTransformerEmbedder,
    build_index,
)

CUTOFFS = (1, 5, 10, 20)
# Tokens, or the default; a few passages are longer than the model reads.
CHUNK_SIZES = {"whole passages": 100_000, "default chunks": None}
PACKAGES = ("faiss-cpu", "sentence-transformers")


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        passages = Path(folder) / "passages.jsonl"
        opener = gzip.open if arguments.file.suffix == ".gz" else open
        with opener(arguments.file, "rb") as source, passages.open("wb") as target:
            shutil.copyfileobj(source, target)
        lines = [json.loads(line) for line in passages.read_bytes().splitlines()]
        model = SentenceTransformerEmbedder(arguments.embedder, device=arguments.device)
        embedder = _Remembering(model)
        rows = [
            _row(name, chunk_size, passages, lines, embedder)
            for name, chunk_size in CHUNK_SIZES.items()
        ]
    known = facts(
        arguments.device,
        timed=False,
        cores=os.cpu_count(),
        packages={name: version(name) for name in PACKAGES},
        embedder=model.name,
        embedder_reads_tokens=model.max_tokens,
        file=arguments.file.name,
        file_sha256=hashlib.sha256(arguments.file.read_bytes()).hexdigest(),
        questions=len(lines),
        randomness="none",
        command=f"python benchmarks/retrieval_recall.py {arguments.file.name}",
    )
    output = None if arguments.out is None else arguments.out / "retrieval_recall"
    report(_table(rows), rows, known, output)
    if output is not None:
        output.with_suffix(".md").write_text(_page(rows, known), encoding="utf-8")


class _Remembering:
    """Embeds every text once, though several indexes are built."""

    def __init__(self, embedder: SentenceTransformerEmbedder) -> None:
        self.name, self.dimension = embedder.name, embedder.dimension
        self.max_tokens, self.count_tokens = embedder.max_tokens, embedder.count_tokens
        self._embedder = embedder
        self._known: dict[str, NDArray[np.float32]] = {}

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        self._known.update(zip(new, self._embedder.embed(new), strict=True))
        return np.stack([self._known[text] for text in texts])


def _row(
    name: str,
    chunk_size: int | None,
    passages: Path,
    lines: list[dict[str, Any]],
    embedder: Embedder,
) -> dict[str, Any]:
    built = build_index(passages, embedder=embedder, chunk_size=chunk_size)
    ranks = _ranks(built.index, lines)
    return {
        "split": name,
        "chunk_size": chunk_size,
        "chunks": len(built.index),
        "passages_met_before": len(built.skipped),
        "recall": {str(k): sum(rank < k for rank in ranks) / len(ranks) for k in CUTOFFS},
    }


def _ranks(index: FaissIndex, lines: list[dict[str, Any]]) -> list[float]:
    """0-based rank of the first document from each question's passage; infinite: not found."""
    ranks = []
    # A passage can answer several questions; it is indexed once, from its first line.
    first: dict[tuple[str, str], int] = {}
    for number, line in enumerate(lines, start=1):
        first.setdefault((line["title"], line["text"]), number)
    for line in lines:
        found = index.search(line["question"], max(CUTOFFS))
        wanted = first[line["title"], line["text"]]
        at = (rank for rank, document in enumerate(found) if document.metadata["line"] == wanted)
        ranks.append(next(at, float("inf")))
    return ranks


def _table(rows: list[dict[str, Any]]) -> str:
    header = ["split", "chunks", *(f"recall@{k}" for k in CUTOFFS)]
    cells = [header, ["---"] * len(header)]
    for row in rows:
        recall = [f"{row['recall'][str(k)]:.3f}" for k in CUTOFFS]
        cells.append([row["split"], str(row["chunks"]), *recall])
    return "\n".join("| " + " | ".join(row) + " |" for row in cells)


def _page(rows: list[dict[str, Any]], known: Facts) -> str:
    packages = ", ".join(f"{name} {number}" for name, number in known["packages"].items())
    return (
        f"# Retrieval recall\n\n{known['questions']} questions of `{known['file']}` (sha256 "
        f"`{known['file_sha256'][:16]}...`), embedder `{known['embedder']}`.\n\n{_table(rows)}\n\n"
        f"Repeat with `{known['command']}`. {known['date']}; {known['processor']}, "
        f"{known['cores']} cores; Python {known['python']}; rag-middle {known['rag_middle']}; "
        f"{packages}, torch {known['torch']}. Nothing is random. Passages that answer several "
        "questions are indexed once.\n"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("file", type=Path, help="JSON lines, plain or gzip")
    parser.add_argument("--embedder", help="default: the package's default")
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path, help="folder for retrieval_recall.json and .md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
