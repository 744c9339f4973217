"""Time to the first token with documents read before, and without.

Twenty documents of a few sentences, a new question each time: methods that begin with documents
read apart, with an empty cache, with documents in memory, and with documents on disk only, next to
the unmodified model, all in every round.

    python benchmarks/document_cache.py
    python benchmarks/document_cache.py --device cuda --dtype bfloat16

Shape: LLaMA, hidden 512, 8 layers, 8 heads, random weights; prompt of 40 + 20 documents of 95 + 40
tokens, as in overhead.py.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from overhead import build_model, clock
from reporting import facts, first_token_table, report
from transformers import DynamicCache

from rag_middle.attention import applied
from rag_middle.attention.seam import MODEL_CACHE
from rag_middle.generation.passes import cached_length
from rag_middle.methods import APE, CacheBlend, Method, NoMethod, ParallelContextWindows
from rag_middle.methods.document_blocks.document_cache import DocumentCache, with_documents
from rag_middle.tokens import TokenizedPrompt

DOCUMENTS, TOKENS, PREFIX, SUFFIX = 20, 95, 40, 40
METHODS: dict[str, Method] = {
    "parallel_context_windows": ParallelContextWindows(),
    "ape": APE(),
    "cacheblend": CacheBlend(),
}


def question(seed: int) -> TokenizedPrompt:
    """The same prefix and documents, another question."""
    fixed = torch.Generator().manual_seed(1)
    new = torch.Generator().manual_seed(1000 + seed)

    def tokens(count: int, generator: torch.Generator) -> list[int]:
        return torch.randint(0, 1000, (count,), generator=generator).tolist()

    return TokenizedPrompt.assembled(
        prefix=tokens(PREFIX, fixed),
        documents=[tokens(TOKENS, fixed) for _ in range(DOCUMENTS)],
        suffix=tokens(SUFFIX, new),
        document_ids=[None] * DOCUMENTS,
    )


@torch.no_grad()
def first_token(
    model: Any, method: Method, prompt: TokenizedPrompt, cache: DocumentCache | None, device: str
) -> float:
    """Seconds until the logits of the first token are there."""
    ids = torch.tensor([prompt.input_ids], device=device)
    start = clock(device)
    known = with_documents(cache, model, method, [prompt])
    with applied(model, method, [prompt], prefilled=cached_length(known)):
        model(
            input_ids=ids[:, cached_length(known) :],
            **{MODEL_CACHE: DynamicCache() if known is None else known},
            use_cache=True,
            logits_to_keep=1,
        )
    return clock(device) - start


def measure(args: argparse.Namespace, folder: Path) -> tuple[list[dict[str, Any]], int]:
    """One row per method and state of the cache, and the bytes of a filled one in memory.

    Ratios are to the unmodified model of the same round.
    """
    model: Any = build_model(args.device, getattr(torch, args.dtype))
    filled = DocumentCache()
    on_disk = DocumentCache(max_bytes=0, directory=folder)
    for cache in (filled, on_disk):
        with_documents(cache, model, APE(), [question(0)])
    ways: dict[str, tuple[Method, Callable[[], DocumentCache | None]]] = {
        "none": (NoMethod(), lambda: None)
    }
    for name, method in METHODS.items():
        ways[f"{name}, no cache"] = (method, lambda: None)
        ways[f"{name}, empty cache"] = (method, DocumentCache)
        ways[f"{name}, documents in memory"] = (method, lambda: filled)
        ways[f"{name}, documents on disk"] = (method, lambda: on_disk)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(args.rounds + 1):
        for name, (method, cache_of) in ways.items():
            seconds = first_token(model, method, question(number), cache_of(), args.device)
            if number:  # the first round warms up
                times[name].append(seconds)
    rows = []
    for name, seconds in times.items():
        ratios = [mine / base for mine, base in zip(seconds, times["none"], strict=True)]
        rows.append(
            {
                "way": name,
                "first_token_ms": statistics.median(seconds) * 1e3,
                "ratio": statistics.median(ratios),
                "ratio_range": [min(ratios), max(ratios)],
            }
        )
    return rows, filled.nbytes


def main() -> None:
    """Measure, print a table, and write the numbers where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, help="write provenance and rows as JSON")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        rows, size = measure(args, Path(folder))
    known = facts(
        args.device, rounds=args.rounds, dtype=args.dtype, memory=f"{size / 2**20:.1f} MiB"
    )
    report(first_token_table(rows), rows, known, args.output)


if __name__ == "__main__":
    main()
