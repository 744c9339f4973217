"""Time to the first token over a folder of pages, with its documents read beforehand and without.

Indexes 200 of the passages that come with the package, prefills them, and asks their questions,
with 20 documents each: of the unmodified model, and under each method without a cache and with the
files that prefilling left behind, in turn.

    python benchmarks/document_cache_corpus.py --model FOLDER
    python benchmarks/document_cache_corpus.py --model FOLDER --device cuda --questions 50

The first question warms up and does not count. Finding the documents is not part of the time.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from reporting import facts, first_token_table, report, write_pages

from rag_middle.answering import Answerer
from rag_middle.generation import DocumentCache, RagMiddleModel

METHODS = ("parallel_context_windows", "ape", "cacheblend")


def states_of(index: Path) -> Path:
    """The folder of keys and values."""
    return index.with_name("states")


def precomputed(arguments: argparse.Namespace, pages: Path, index: Path) -> dict[str, Any]:
    """Index and prefill the pages; how many there are, and the seconds it took."""
    started = time.perf_counter()
    answerer = Answerer.over(
        pages,
        index_folder=index,
        model=arguments.model,
        device=arguments.device,
        document_cache=DocumentCache(max_bytes=0, directory=states_of(index)),
    )
    documents = answerer.retriever.index.documents
    template = answerer.prompt_template
    read = answerer.model.precompute([template.prompt("", [it]) for it in documents])
    files = list(states_of(index).rglob("*.safetensors"))
    return {
        "chunks": len(documents),
        "read": read,
        "seconds": time.perf_counter() - started,
        "bytes": sum(file.stat().st_size for file in files),
    }


def answerers(arguments: argparse.Namespace, index: Path) -> dict[str, tuple[Answerer, str]]:
    """By name of the way: who answers, and under which method. All share one model's weights."""
    plain = Answerer.over(index, model=arguments.model, device=arguments.device, top_k=20)
    model = plain.model.model
    tokenizer = plain.model.tokenizer

    def sharing(cache: DocumentCache | None) -> Answerer:
        own = RagMiddleModel(model, tokenizer, document_cache=cache)
        return Answerer(own, plain.retriever, prompt_template=plain.prompt_template)

    uncached = sharing(None)
    on_disk = sharing(DocumentCache(max_bytes=0, directory=states_of(index)))
    in_memory = sharing(DocumentCache(directory=states_of(index)))
    ways = {"none": (uncached, "none")}
    for method in METHODS:
        ways[f"{method}, no cache"] = (uncached, method)
        ways[f"{method}, files"] = (on_disk, method)
        ways[f"{method}, files, then memory"] = (in_memory, method)
    return ways


def measure(
    arguments: argparse.Namespace, questions: list[str], index: Path
) -> list[dict[str, Any]]:
    """One row per way; ratios to the unmodified model's time for the same question."""
    ways = answerers(arguments, index)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    tokens: list[int] = []
    for number, question in enumerate(questions[: arguments.questions + 1]):
        documents = ways["none"][0].retriever(question)
        for way, (answerer, method) in ways.items():
            started = time.process_time()
            asked = answerer.ask(question, documents=documents, method=method, max_new_tokens=1)
            cpu, wall = time.process_time() - started, asked.generation.timings.time_to_first_token
            if number:
                seconds[way].append(cpu if arguments.clock == "cpu" else wall)
        if number:
            tokens.append(asked.generation.usage.prompt_tokens)
        print(f"question {number}/{arguments.questions}", file=sys.stderr, flush=True)
    rows: list[dict[str, Any]] = []
    for way, taken in seconds.items():
        ratios = [mine / base for mine, base in zip(taken, seconds["none"], strict=True)]
        rows.append(
            {
                "way": way,
                "first_token_ms": statistics.median(taken) * 1e3,
                "ratio": statistics.median(ratios),
                "ratio_range": [min(ratios), max(ratios)],
                "prompt_tokens": statistics.median(tokens),
            }
        )
    return rows


def main() -> None:
    """Measure, print a table, and write the numbers where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="folder of a model")
    parser.add_argument("--device", help="cpu, cuda, ...; by default a GPU if there is one")
    parser.add_argument("--questions", type=int, default=20)
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: the process's own time for a whole answer of one token, on a busy machine",
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, help="write provenance and rows as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        pages, index = Path(folder) / "pages", Path(folder) / "index"
        questions = write_pages(pages, 200)
        read = precomputed(arguments, pages, index)
        rows = measure(arguments, questions, index)
    more = {
        "model": arguments.model.name,
        "questions": arguments.questions,
        "clock": "CPU time of the process" if arguments.clock == "cpu" else "wall",
        "prompt tokens, median": rows[0]["prompt_tokens"],
        "chunks indexed": read["chunks"],
        "documents and texts before them read": read["read"],
        "seconds of indexing and reading": round(read["seconds"], 1),
        "MiB on disk": round(read["bytes"] / 2**20, 1),
    }
    known = facts(arguments.device, **more)
    report(first_token_table(rows), rows, known, arguments.output)


if __name__ == "__main__":
    main()
