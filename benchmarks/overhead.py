"""What a method costs: ratios to the unmodified model, all measured in one run.

Every round runs the plain model and each method in turn on the same prompt, so that a machine that
slows down slows all of them; the reported ratio is the median over rounds of a method's time to
the plain model's time *of that round*. Peak memory is measured in a process of its own.

    python benchmarks/overhead.py                      # ratios of time
    python benchmarks/overhead.py --device cuda --dtype bfloat16
    python benchmarks/overhead.py --memory             # peak memory at 1k, 2k and 4k tokens

Shape: LLaMA, hidden 512, 8 layers, 8 heads, vocabulary 1000; prompt of 1980 tokens, 40 + 20
documents of 95 + 40; 8 decode steps. Passes that a method takes to put documents in order count as
prefill, and so do all passes of a method that combines several.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from reporting import facts, report
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from rag_middle.attention import ModelTraits, applied, last_token_attention, model_traits
from rag_middle.attention.seam import MODEL_CACHE
from rag_middle.generation.forward import next_token_logits
from rag_middle.generation.passes import cached_length
from rag_middle.generation.processors import combined
from rag_middle.generation.prompts import arranged, branched
from rag_middle.generation.shared_prefixes import prefilled_cache
from rag_middle.methods import (
    APE,
    DSAS,
    LPES,
    PINE,
    SIW,
    AttentionBuckets,
    AttentionCalibration,
    AttentionSorting,
    AttnRank,
    CacheBlend,
    Compose,
    DySCO,
    LongContextReorder,
    MeasuredOrder,
    Method,
    MoICE,
    MsPoE,
    NoInterDocumentAttention,
    NoMethod,
    ParallelContextWindows,
    Permutation,
    PositionalHiddenStates,
    PositionInterpolation,
    PromptRepetition,
    RoToR,
    SelfExtend,
    SetBasedPrompting,
    StructuredPrompting,
    ZeroTuning,
)
from rag_middle.methods.scales import PUBLISHED_BASES
from rag_middle.tokens import TokenizedPrompt, padded

DECODE_STEPS = 8
#: Targets (prefill, decode) of this project.
TARGETS = {
    "position_interpolation": (1.02, 1.02),
    "lpes": (1.02, 1.02),
    "ms_poe": (1.06, 1.05),
    "positional_hidden_states": (1.05, 1.03),
    "siw": (1.12, 1.02),
    "pine": (2.0, 1.5),
    "self_extend": (1.6, None),
    "parallel_context_windows": (1.0, None),
    "ape": (1.0, None),
    "rotor": (1.6, None),
    "attention_sorting": (2.0, None),  # one more prefill per iteration
    "attention_buckets": (7.0, 7.0),  # as many as bases
}
METHODS: dict[str, Method] = {
    "position_interpolation": PositionInterpolation(scale=1.5),
    "lpes": LPES(factors=(1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8)),
    "ms_poe": MsPoE(),
    "positional_hidden_states": PositionalHiddenStates(
        channels=(100,), factor=-1.0, layers=tuple(range(2, 8))
    ),
    "siw": SIW(),
    "zero_tuning": ZeroTuning(factor=0.6),
    "dsas": DSAS(),
    "siw + lpes": Compose(methods=(SIW(), LPES(factors=1.5))),
    "pine": PINE(),
    "self_extend": SelfExtend(group=2, window=1024),
    "siw + self_extend": Compose(methods=(SIW(), SelfExtend(group=2, window=1024))),
    # The authors' heads lie in the middle of the model, up to two thirds of it.
    "dysco": DySCO(heads=((3, 0), (4, 3), (5, 1))),
    "no_inter_document_attention": NoInterDocumentAttention(),
    "parallel_context_windows": ParallelContextWindows(),
    "set_based_prompting": SetBasedPrompting(),
    "structured_prompting": StructuredPrompting(),
    "ape": APE(),
    "cacheblend": CacheBlend(),
    "rotor": RoToR(),
    "attention_buckets": AttentionBuckets(),
    # Routers add next to nothing: all experts are computed whatever they say.
    "moice": MoICE(routers="uniform", base_factors=PUBLISHED_BASES),
    "permutation": Permutation(orders=4),
    "attention_sorting": AttentionSorting(iterations=1),
    "attention_calibration": AttentionCalibration(),
    "attention_calibration, one pass": AttentionCalibration(one_pass=True),
    "attn_rank": AttnRank(profile=(0.3, 0.1, 0.2)),
    "measured_order": MeasuredOrder(accuracy=(0.3, 0.1, 0.2)),
    "long_context_reorder": LongContextReorder(),
    "prompt_repetition": PromptRepetition(what="documents"),
}


def build_model(device: str, dtype: torch.dtype) -> LlamaForCausalLM:
    """The benchmark's model, with random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=8,
        num_attention_heads=8,
        vocab_size=1000,
        max_position_embeddings=8192,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config).eval().to(device=device, dtype=dtype)


def prompt(documents: int, *, tokens: int = 95) -> TokenizedPrompt:
    """Random tokens: 40, then `documents` of `tokens` with scores in no order, then 40."""
    generator = torch.Generator().manual_seed(1)

    def drawn(count: int) -> list[int]:
        return torch.randint(0, 1000, (count,), generator=generator).tolist()

    return TokenizedPrompt.assembled(
        prefix=drawn(40),
        documents=[drawn(tokens) for _ in range(documents)],
        suffix=drawn(40),
        document_ids=[None] * documents,
        scores=torch.rand(documents, generator=generator).tolist(),
    )


class Runner:
    """What methods may ask of a model that has no tokenizer."""

    def __init__(self, model: LlamaForCausalLM, method: Method) -> None:
        self._model, self._name = model, method.name

    @property
    def traits(self) -> ModelTraits:
        return model_traits(self._model)

    def last_token_attention(self, prompt: TokenizedPrompt) -> Tensor:
        ids = torch.tensor([prompt.input_ids], device=self._model.device)
        return last_token_attention(self._model, ids, self._name)

    def logits(self, prompt: TokenizedPrompt, method: Method | None = None) -> Tensor:
        return next_token_logits(self._model, prompt, method or NoMethod())

    def token_ids(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode("ascii"))


def clock(device: str) -> float:
    """Seconds: of this process on CPU (the machine may be shared), of the wall on a GPU."""
    if device == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


@torch.no_grad()
def run(
    model: LlamaForCausalLM,
    method: Method,
    prompt: TokenizedPrompt,
    device: str,
    clock: Callable[[str], float] = clock,
) -> tuple[float, float]:
    """What `clock` counts, seconds, of the prefill and of `DECODE_STEPS` decode steps."""
    start = clock(device)
    runner = Runner(model, method)
    branches = branched(arranged(method.rewrite(prompt), method, runner), method, runner)
    ids, _ = padded(branches, 0, device)  # all of the same length
    cache = prefilled_cache(None, model, method, branches)
    cached = cached_length(cache)
    with applied(model, method, branches, prefilled=cached, prepared=True):
        cache = cache or DynamicCache()
        rest = ids[:, cached:]
        out = model(input_ids=rest, use_cache=True, logits_to_keep=1, **{MODEL_CACHE: cache})
        middle = clock(device)
        for _ in range(DECODE_STEPS):
            logits = combined(method, out.logits[:, -1:].float(), [len(branches)])[:, -1]
            token = logits.argmax(-1, keepdim=True).expand(len(branches), 1)
            out = model(input_ids=token, use_cache=True, **{MODEL_CACHE: out.get(MODEL_CACHE)})
        return middle - start, clock(device) - middle


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per method."""
    model = build_model(args.device, getattr(torch, args.dtype))
    twenty = prompt(20)
    methods = {"none": NoMethod(), **METHODS}
    if args.methods:
        methods = {name: methods[name] for name in ("none", *args.methods)}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in methods}
    for round_number in range(args.rounds + 1):
        for name, method in methods.items():
            seconds = run(model, method, twenty, args.device)
            if round_number:  # the first round warms up
                times[name].append(seconds)
        print(f"round {round_number}/{args.rounds}", file=sys.stderr, flush=True)
    rows = []
    for name, seconds in times.items():
        pairs = list(zip(seconds, times["none"], strict=True))
        rows.append(
            {
                "method": name,
                "prefill_s": statistics.median(s[0] for s in seconds),
                "decode_ms_per_step": statistics.median(s[1] for s in seconds) / DECODE_STEPS * 1e3,
                "prefill_ratio": statistics.median(mine[0] / base[0] for mine, base in pairs),
                "decode_ratio": statistics.median(mine[1] / base[1] for mine, base in pairs),
                "prefill_ratio_range": _range([mine[0] / base[0] for mine, base in pairs]),
                "decode_ratio_range": _range([mine[1] / base[1] for mine, base in pairs]),
            }
        )
    return rows


def _range(values: list[float]) -> list[float]:
    return [min(values), max(values)]


def peak_memory(method: str, documents: int, device: str, dtype: str) -> float:
    """Peak memory in MiB of one prefill and decode, in a fresh process."""
    command = [sys.executable, __file__, "--peak-of", method, str(documents)]
    command += ["--device", device, "--dtype", dtype]
    # Freed memory goes back at once, so that the peak of the process is that of its live tensors.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return float(done.stdout.strip().splitlines()[-1])


def print_peak(method: str, documents: int, device: str, dtype: str) -> None:
    """Body of the fresh process: print the peak above the loaded, probed model."""
    model = build_model(device, getattr(torch, dtype))
    chosen = {"none": NoMethod(), **METHODS}[method]
    run(model, chosen, prompt(1), device)
    before = _peak(device)
    run(model, chosen, prompt(documents), device)
    print(_peak(device) - before)


def _peak(device: str) -> float:
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def memory_rows(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Peak MiB above the loaded model at about 1k, 2k and 4k tokens."""
    rows = []
    for name in ["none", *(args.methods or METHODS)]:
        row: dict[str, Any] = {"method": name}
        for documents in (10, 20, 41):
            row[f"{80 + 95 * documents} tokens"] = peak_memory(
                name, documents, args.device, args.dtype
            )
        rows.append(row)
        print(row, file=sys.stderr, flush=True)
    return rows


def timing_table(rows: list[dict[str, Any]]) -> str:
    """Markdown table of the ratios beside their targets."""
    lines = [
        "| method | prefill | target | decode | target |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        prefill, decode = TARGETS.get(row["method"], (None, None))
        lines.append(
            f"| {row['method']} | {_ratio(row, 'prefill')} | {prefill or ''} | "
            f"{_ratio(row, 'decode')} | {decode or ''} |"
        )
    return "\n".join(lines)


def _ratio(row: dict[str, Any], phase: str) -> str:
    low, high = row[f"{phase}_ratio_range"]
    return f"{row[f'{phase}_ratio']:.3f} ({low:.2f} to {high:.2f})"


def memory_table(rows: list[dict[str, Any]]) -> str:
    """Markdown table of peak memory."""
    sizes = [key for key in rows[0] if key != "method"]
    lines = [
        "| method | " + " | ".join(sizes) + " |",
        "| --- |" + " ---: |" * len(sizes),
    ]
    lines += [
        f"| {row['method']} | " + " | ".join(f"{row[size]:.0f} MiB" for size in sizes) + " |"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure, print a table, and write the numbers where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--methods", nargs="*", choices=METHODS, metavar="METHOD")
    parser.add_argument("--memory", action="store_true", help="peak memory instead of time")
    parser.add_argument("--output", type=Path, help="write provenance and rows as JSON")
    parser.add_argument(
        "--peak-of", nargs=2, metavar=("METHOD", "DOCUMENTS"), help=argparse.SUPPRESS
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.peak_of:
        print_peak(args.peak_of[0], int(args.peak_of[1]), args.device, args.dtype)
        return
    rows = memory_rows(args) if args.memory else measure(args)
    table = memory_table(rows) if args.memory else timing_table(rows)
    model = "LlamaForCausalLM, hidden 512, 8 layers, 8 heads, random weights, seed 0"
    report(
        table,
        rows,
        facts(args.device, rounds=args.rounds, dtype=args.dtype, model=model),
        args.output,
    )


if __name__ == "__main__":
    main()
