"""What methods cost in vLLM: engines side by side in one process, asked in turn.

Each round asks every engine once, in another order, so that a machine that slows down slows all of
them; a reported ratio is the median over rounds of the ratio to the unmodified engine within a
round. An engine of each kind: unmodified, LPES, position interpolation, and one that reads
documents, whose methods are compared with `RagMiddleModel` too. A second unmodified engine shows
what is noise.

In the environment that `make setup-vllm` makes::

    OMP_NUM_THREADS=1 .venv-vllm/bin/python benchmarks/vllm_overhead.py \\
        --output benchmarks/results/vllm_overhead_cpu
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# vLLM reads these when it is imported: engines in this process, on OMP_NUM_THREADS threads.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import vllm
from reporting import Facts, facts, report
from vllm import LLM, SamplingParams

from rag_middle import RagMiddleModel
from rag_middle.documents import ContextPrompt
from rag_middle.evaluation import shipped_questions
from rag_middle.evaluation.conditions import position
from rag_middle.methods import resolve_method
from rag_middle.small_model import default_model
from rag_middle_vllm.documents import document_request

#: Most that rotary methods may cost, of the unmodified engine's time.
TARGET = 1.02
UNMODIFIED, LIBRARY = "unmodified", "rag-middle"
DOCUMENT_METHODS = ("no_inter_document_attention", "parallel_context_windows", "rotor")
ENGINES: dict[str, dict[str, Any]] = {
    UNMODIFIED: {},
    "unmodified, again": {},
    "lpes": {"rag_middle": {"method": "lpes", "options": {"factors": [1.0, 1.26, 1.47, 1.4]}}},
    "position_interpolation": {
        "rag_middle": {"method": "position_interpolation", "options": {"scale": 1.5}}
    },
    "documents enabled": {"rag_middle": {"documents": {name: {} for name in DOCUMENT_METHODS}}},
}
MEASURES = ("first_token", "answers")

#: Makes prompts ready, so many tokens to be answered; what is returned answers them.
Way = Callable[[list[ContextPrompt], int], Callable[[], object]]


def engine_way(llm: LLM, method: str | None = None) -> Way:
    """Ask an engine, all prompts at once, under a method of the request or without one."""
    tokenizer = llm.get_tokenizer()

    def prepare(prompts: list[ContextPrompt], tokens: int) -> Callable[[], object]:
        params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
        chosen = resolve_method(method or "no_inter_document_attention")
        requests = [document_request(tokenizer, prompt, chosen, params) for prompt in prompts]
        sampling = params if method is None else [own for _, own in requests]
        return lambda: llm.generate([ids for ids, _ in requests], sampling, use_tqdm=False)

    return prepare


def library_way(model: RagMiddleModel, method: str) -> Way:
    """Ask the model in transformers, prompts one by one; tokenising them is part of it."""

    def prepare(prompts: list[ContextPrompt], tokens: int) -> Callable[[], object]:
        return lambda: [
            model.generate(prompt, method=method, max_new_tokens=tokens) for prompt in prompts
        ]

    return prepare


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds of each way in each round, and the ratios of what belongs together."""
    clock = time.process_time if args.clock == "cpu" else time.perf_counter
    task = shipped_questions(documents=args.documents, distractors="random")
    prompts = [
        task.prompt(item, position(args.documents // 2))
        for item in task.items(args.prompts, seed=0)
    ]
    ways: dict[str, Way] = {}
    for name, overrides in ENGINES.items():
        llm = LLM(
            model=str(args.model),
            dtype="float32",
            max_model_len=args.max_model_len,
            max_num_seqs=args.prompts,
            enable_prefix_caching=False,
            enable_chunked_prefill=False,  # as documents need it
            hf_overrides=overrides,
        )
        ways[name] = engine_way(llm)
        if "documents" in overrides.get("rag_middle", {}):
            ways |= {f"vLLM, {method}": engine_way(llm, method) for method in DOCUMENT_METHODS}
    model = RagMiddleModel.from_pretrained(args.model, dtype="float32")
    ways |= {f"{LIBRARY}, {method}": library_way(model, method) for method in DOCUMENT_METHODS}
    # First tokens one prompt after the other: a single one is too short to be timed.
    work = {
        "first_token": {
            name: [way([prompt], 1) for prompt in prompts] for name, way in ways.items()
        },
        "answers": {name: [way(prompts, args.max_tokens)] for name, way in ways.items()},
    }
    seconds: dict[str, dict[str, list[float]]] = {
        name: {measured: [] for measured in MEASURES} for name in ways
    }
    for number in range(args.rounds + 1):
        order = list(ways)
        random.Random(number).shuffle(order)
        for measured, ready in work.items():
            for name in order:
                # The library ends its answers, and engines are told not to.
                if measured == "answers" and name.startswith(LIBRARY):
                    continue
                start = clock()
                for ask in ready[name]:
                    ask()
                if number:  # the first round warms up
                    seconds[name][measured].append(clock() - start)
        print(f"round {number}/{args.rounds}", file=sys.stderr, flush=True)
    return [_row(name, seconds, args) for name in ways]


def _row(
    name: str, seconds: dict[str, dict[str, list[float]]], args: argparse.Namespace
) -> dict[str, Any]:
    own = {measured: values for measured, values in seconds[name].items() if values}
    row: dict[str, Any] = {
        "way": name,
        "first_token_ms": 1e3 * statistics.median(own["first_token"]) / args.prompts,
        "ratio": {
            measured: _ratio(own[measured], seconds[UNMODIFIED][measured]) for measured in own
        },
        "seconds": own,
    }
    if "answers" in own:
        tokens = args.prompts * args.max_tokens
        row["tokens_per_s"] = tokens / statistics.median(own["answers"])
    return row


def _ratio(numerator: list[float], denominator: list[float]) -> dict[str, float]:
    ratios = sorted(a / b for a, b in zip(numerator, denominator, strict=True))
    quarter = len(ratios) // 4
    return {
        "median": statistics.median(ratios),
        "low": ratios[quarter],
        "high": ratios[-1 - quarter],
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: each way's times, and their ratios to the unmodified engine."""
    lines = [
        "| | first token | ratio | answers | ratio |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        first, answers = (_shown(row, measured) for measured in MEASURES)
        speed = f"{row['tokens_per_s']:.0f} tokens/s" if "tokens_per_s" in row else ""
        lines.append(
            f"| {row['way']} | {row['first_token_ms']:.1f} ms | {first} | {speed} | {answers} |"
        )
    return "\n".join(lines)


def _shown(row: dict[str, Any], measured: str) -> str:
    if row["way"] == UNMODIFIED or measured not in row["ratio"]:
        return ""
    ratio = row["ratio"][measured]
    median = f"{ratio['median']:.3f}"
    is_missed = row["way"] in ENGINES and ratio["median"] > TARGET
    median = f"**{median}**" if is_missed else median
    return f"{median} ({ratio['low']:.3f} to {ratio['high']:.3f})"


def page(rows: list[dict[str, Any]], known: Facts) -> str:
    """The page that `--output` writes."""
    return (
        "# What methods cost in vLLM\n\n"
        f"`first token`: one prompt of {known['documents']} documents, one token; the mean over "
        f"{known['prompts']} prompts. `answers`: all of them at once, {known['max_tokens']} tokens "
        f"each. Medians over {known['rounds']} rounds ({known['clock']}), each of "
        "which asks all engines, in one process and in another order. A ratio is the median of "
        "the ratios of time to the unmodified engine within a round, with the middle half of "
        f"them; at most {TARGET} is wanted where a method is the whole engine's, in bold where "
        f"missed.\n\n{table(rows)}\n\n"
        f"Repeat with `{known['command']}`. {known['date']}; {known['processor']}, "
        f"{known['threads']} thread(s) of {known['cores']} cores; model: {known['model']}, "
        f"float32, compiled, no prefix caching; vLLM {known['vllm']}, torch {known['torch']}, "
        f"transformers {known['transformers']}, Python {known['python']}, rag-middle "
        f"{known['rag_middle']}.\n"
    )


def main() -> None:
    """Measure, print the table, and write the numbers where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="folder or hub name; by default SmolLM2-135M-Instruct")
    parser.add_argument("--documents", type=int, default=5, help="per prompt")
    parser.add_argument("--prompts", type=int, default=8, help="answered at once")
    parser.add_argument("--max-tokens", type=int, default=32, help="per answer")
    parser.add_argument("--max-model-len", type=int, default=1536)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write FILE.json and FILE.md")
    args = parser.parse_args()
    named, args.model = args.model, args.model or default_model()
    rows = measure(args)
    known = facts(
        None,
        vllm=vllm.__version__,
        cores=os.cpu_count(),
        model=named or "SmolLM2-135M-Instruct",
        clock="CPU time of the process" if args.clock == "cpu" else "wall",
        **{name: getattr(args, name) for name in ("documents", "prompts", "max_tokens", "rounds")},
    )
    report(table(rows), rows, known, args.output)
    if args.output:
        args.output.with_suffix(".md").write_text(page(rows, known), encoding="utf-8")


if __name__ == "__main__":
    main()
