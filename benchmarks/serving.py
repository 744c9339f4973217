"""What `rag-middle serve` answers per second, against `generate` called for one prompt at a time.

Every round sends the same prompts in each way in turn, so that a machine that slows down slows all
of them; a gain is the median over rounds of the ratio within a round. The server is a process of
its own. Clients send their next request when they have the answer to the last one.

    python benchmarks/serving.py --output benchmarks/results/serving_cpu
    python benchmarks/serving.py --model Qwen/Qwen2.5-0.5B-Instruct --documents 20 --device cuda
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import torch
import transformers
from reporting import Facts, facts, report

from rag_middle import ContextPrompt, RagMiddleModel
from rag_middle.evaluation import position, shipped_questions
from rag_middle.small_model import default_model

#: Least that eight waiting requests must gain.
TARGETS = {"none": 2.5, "pine": 2.0}
WAITING = 8
_WAYS = {"generate": "`generate`, one by one", "batch": "`batch`"}


def requests(count: int, documents: int) -> list[tuple[list[dict[str, Any]], str]]:
    """Documents and question of each request."""
    task = shipped_questions(documents=documents, distractors="random")
    prompts = [
        task.prompt(item, position(index % documents))
        for index, item in enumerate(task.items(count, 0))
    ]
    return [([{"text": d.text} for d in prompt.documents], prompt.suffix) for prompt in prompts]


@contextmanager
def server(args: argparse.Namespace, threads: int) -> Iterator[str]:
    """Address of a server under all methods."""
    command = [sys.executable, "-m", "rag_middle", "serve", "--model", args.model, "--port", "0"]
    command += ["--served-model-name", "model", "--dtype", args.dtype]
    command += ["--max-batch-size", str(args.batch_size), "--method", args.methods[0]]
    for method in args.methods[1:]:
        command += ["--allow-method", method]
    if args.device:
        command += ["--device", args.device]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen(command, stderr=log, env=environment)
        try:
            while not (found := re.search(r"http://[\d.]+:\d+", Path(log.name).read_text())):
                if process.poll() is not None:
                    sys.exit(f"The server did not start:\n{Path(log.name).read_text()}")
                time.sleep(0.1)
            yield found.group()
        finally:
            process.terminate()
            process.wait(60)


async def load(
    url: str, method: str, clients: int, asked: Sequence[Any], max_tokens: int
) -> tuple[float, list[float], list[str]]:
    """Seconds for all requests, seconds of each, and the answers."""
    waiting = iter(enumerate(asked))
    latencies: list[float] = []
    answers = [""] * len(asked)

    async def client(http: httpx.AsyncClient) -> None:
        for index, (documents, question) in waiting:
            body = {
                "model": "model",
                "method": method,
                "documents": documents,
                "messages": [{"role": "user", "content": question}],
                "max_tokens": max_tokens,
            }
            start = time.perf_counter()
            response = await http.post(f"{url}/v1/chat/completions", json=body)
            latencies.append(time.perf_counter() - start)
            answers[index] = response.raise_for_status().json()["choices"][0]["message"]["content"]

    async with httpx.AsyncClient(timeout=600) as http:
        start = time.perf_counter()
        await asyncio.gather(*(client(http) for _ in range(clients)))
        return time.perf_counter() - start, latencies, answers


def one_by_one(
    model: RagMiddleModel, method: str, asked: Sequence[Any], max_tokens: int
) -> tuple[float, list[float], list[str]]:
    """The same with `generate`."""
    latencies: list[float] = []
    answers: list[str] = []
    begin = time.perf_counter()
    for documents, question in asked:
        start = time.perf_counter()
        prompt = ContextPrompt("", [document["text"] for document in documents], question)
        answers.append(model.generate(prompt, method=method, max_new_tokens=max_tokens).text)
        latencies.append(time.perf_counter() - start)
    return time.perf_counter() - begin, latencies, answers


def together(
    model: RagMiddleModel, method: str, asked: Sequence[Any], max_tokens: int, batch_size: int
) -> tuple[float, list[float], list[str]]:
    """The same with `batch`, all prompts known at the start."""
    start = time.perf_counter()
    results = model.batch(
        [ContextPrompt("", [d["text"] for d in documents], q) for documents, q in asked],
        method=method,
        max_new_tokens=max_tokens,
        max_batch_size=batch_size,
    )
    seconds = time.perf_counter() - start
    return seconds, [seconds], [result.text for result in results]


def measure(
    args: argparse.Namespace, model: RagMiddleModel, url: str, method: str, documents: int
) -> list[dict[str, Any]]:
    """A row for `generate`, for `batch`, and for each number of clients."""
    asked = requests(args.requests, documents)
    ways: list[int | str] = ["generate", "batch", *args.clients]
    seconds: dict[int | str, list[float]] = {way: [] for way in ways}
    latencies: dict[int | str, list[float]] = {way: [] for way in ways}
    differing: dict[int | str, int] = {}
    for number in range(args.rounds + 1):
        expected: list[str] = []
        for way in ways:
            if way == "generate":
                total, each, answers = one_by_one(model, method, asked, args.max_tokens)
                expected = answers
            elif way == "batch":
                total, each, answers = together(
                    model, method, asked, args.max_tokens, args.batch_size
                )
            else:
                assert isinstance(way, int)
                total, each, answers = asyncio.run(load(url, method, way, asked, args.max_tokens))
            differing[way] = sum(a != b for a, b in zip(answers, expected, strict=True))
            if number:  # the first round warms up
                seconds[way].append(total)
                latencies[way] += each
        print(
            f"{method}, {documents} documents: round {number}/{args.rounds}",
            file=sys.stderr,
            flush=True,
        )
    return [
        {
            "method": method,
            "documents": documents,
            "way": way,
            "requests_per_s": len(asked) / statistics.median(seconds[way]),
            "p50_ms": 1e3 * statistics.median(latencies[way]),
            "p95_ms": 1e3 * sorted(latencies[way])[int(0.95 * (len(latencies[way]) - 1))],
            "gain": _ratios(seconds["generate"], seconds[way]),
            "other_answers": differing[way],
            "seconds": seconds[way],
        }
        for way in ways
    ]


def _ratios(numerator: list[float], denominator: list[float]) -> dict[str, float]:
    ratios = [a / b for a, b in zip(numerator, denominator, strict=True)]
    return {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown, gains at eight clients in bold where they miss their target."""
    lines = [
        "| method | documents | way | requests/s | p50 | p95 | gain | target | other answers |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        way = _WAYS.get(row["way"]) or f"server, {row['way']} clients"
        target = TARGETS.get(row["method"]) if row["way"] == WAITING else None
        gain = f"{row['gain']['median']:.2f}"
        if target is not None and row["gain"]["median"] < target:
            gain = f"**{gain}**"
        low, high = row["gain"]["least"], row["gain"]["most"]
        lines.append(
            f"| {row['method']} | {row['documents']} | {way} | {row['requests_per_s']:.2f} | "
            f"{row['p50_ms']:.0f} ms | {row['p95_ms']:.0f} ms | {gain} ({low:.2f} to {high:.2f}) | "
            f"{'' if target is None else f'at least {target}'} | {row['other_answers']} |"
        )
    return "\n".join(lines)


def page(rows: Sequence[dict[str, Any]], known: Facts) -> str:
    """The page that `--output` writes."""
    told = ", ".join(f"{name} {known[name]}" for name in ("uvicorn", "torch", "transformers"))
    return (
        "# What the server answers per second\n\n"
        f"{known['requests']} requests with at most {known['max_tokens']} new tokens, "
        f"{known['rounds']} rounds after one to warm up. A client sends its next request when it "
        "has an answer. `gain` is requests per second to those of `RagMiddleModel.generate` called "
        "for one prompt after the other: the median of the ratios within a round, with the least "
        "and the most, in bold where it misses its target. `batch` knows all prompts at the start "
        "and puts those of one length together; a server takes them as "
        "they come, and stays below it. p50 and p95 are of the time to the whole answer. `other "
        "answers` differ from those of "
        f"`generate`.\n\n{table(rows)}\n\n"
        f"{known['note']}\n\nRepeat with `{known['command']}`. {known['date']}; model: "
        f"{known['model']}, {known['dtype']}; batches of at most {known['batch_size']}; "
        f"{known['processor']}, {known['cores']} cores, {known['threads']} threads for the model; "
        f"Python {known['python']}; rag-middle {known['rag_middle']}; {told}.\n"
    )


def main() -> None:
    """Measure, print tables, and write the numbers where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="folder or hub name; by default SmolLM2-135M-Instruct")
    parser.add_argument("--method", nargs="+", default=["none", "pine"], dest="methods")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--documents", type=int, nargs="+", default=[4, 10], help="per prompt")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--note", default="The machine had nothing else to do.")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write FILE.json and FILE.md")
    args = parser.parse_args()
    named, args.model = args.model, args.model or default_model()
    torch.set_num_threads(args.threads)
    transformers.utils.logging.disable_progress_bar()
    model = RagMiddleModel.from_pretrained(args.model, dtype=args.dtype, device=args.device)
    with server(args, args.threads) as url:
        rows = [
            row
            for method in args.methods
            for documents in args.documents
            for row in measure(args, model, url, method, documents)
        ]
    names = ("requests", "max_tokens", "batch_size", "rounds", "dtype", "note")
    known = facts(
        args.device,
        uvicorn=version("uvicorn"),
        fastapi=version("fastapi"),
        cores=os.cpu_count(),
        load_average=os.getloadavg()[1],
        model=named or "SmolLM2-135M-Instruct",
        clock="wall",
        command=shlex.join(["python", *sys.argv]),
        **{name: getattr(args, name) for name in names},
    )
    report(table(rows), rows, known, args.output)
    if args.output:
        args.output.with_suffix(".md").write_text(page(rows, known), encoding="utf-8")


if __name__ == "__main__":
    main()
