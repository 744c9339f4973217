"""PINE's attention operator against one causal attention call of the same shape.

    python benchmarks/pine_op.py [--lengths equal|unequal] [--heads 8] [--groups 8] [--rounds 15]

One thread, float32, CPU. Rounds interleave all candidates, so that a busy machine hurts them alike;
medians are reported. Peak memory is the growth of the process's resident set over one prefill.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

from rag_middle.layout import PromptLayout
from rag_middle.ops.pine import PineTables, ScoreRule, base_rotate, decode, prefill
from rag_middle.ops.rope import RotaryStyle


def make_layout(documents: int, mean_length: int, unequal: bool) -> PromptLayout:
    """40 prefix tokens, documents, 40 suffix tokens."""
    draw = random.Random(0)
    spans, start = [], 40
    for _ in range(documents):
        spread = mean_length * 35 // 95
        length = (
            draw.randint(mean_length - spread, mean_length + spread) if unequal else mean_length
        )
        spans.append((start, start + length))
        start += length
    return PromptLayout(length=start + 40, documents=tuple(spans))


def candidates(
    layout: PromptLayout, heads: int, groups: int, d: int = 64, dtype: torch.dtype = torch.float32
) -> dict[str, Callable[[], object]]:
    n = layout.length
    torch.manual_seed(0)
    q = torch.randn(1, heads, n, d, dtype=dtype)
    k, v = torch.randn(2, 1, groups, n, d, dtype=dtype)
    angles = torch.arange(n + 64)[:, None] * 10000.0 ** -(torch.arange(0, d, 2) / d)
    style = RotaryStyle("half", d // 2)
    tables = PineTables(layout, angles.cos(), angles.sin(), style)
    rule = ScoreRule(scale=d**-0.5)
    first = prefill(q, k, v, tables, rule)
    new_q, new_k = (
        torch.randn(1, heads, 1, d, dtype=dtype),
        torch.randn(1, groups, 1, d, dtype=dtype),
    )
    cache = torch.cat((first.rotated_keys, base_rotate(new_k, tables, n)), dim=2)
    values = torch.cat((v, new_k), dim=2)

    def causal() -> object:
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != groups)

    return {
        "causal": causal,
        "pine": lambda: prefill(q, k, v, tables, rule),
        "pine with lse": lambda: prefill(q, k, v, tables, rule, need_lse=True),
        "causal step": lambda: scaled_dot_product_attention(
            new_q, cache, values, enable_gqa=heads != groups
        ),
        "pine step": lambda: decode(new_q, cache, values, first.state, rule),
    }


def milliseconds(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):  # the first round warms up
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def peak_growth(documents: int, heads: int, groups: int) -> float:
    """MiB that one prefill adds to the peak of a fresh process, over its inputs."""
    calls = candidates_of_memory(documents, heads, groups)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    calls()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def candidates_of_memory(documents: int, heads: int, groups: int) -> Callable[[], object]:
    layout = make_layout(documents, 95, unequal=True)
    d = 64
    q = torch.randn(1, heads, layout.length, d)
    k, v = torch.randn(2, 1, groups, layout.length, d)
    angles = torch.arange(layout.length)[:, None] * 10000.0 ** -(torch.arange(0, d, 2) / d)
    tables = PineTables(layout, angles.cos(), angles.sin(), RotaryStyle("half", d // 2))
    small = PromptLayout(length=8, documents=((2, 4), (4, 6)))
    warm = PineTables(small, angles.cos(), angles.sin(), RotaryStyle("half", d // 2))
    rule = ScoreRule(scale=d**-0.5)
    prefill(q[:, :, :8], k[:, :, :8], v[:, :, :8], warm, rule)
    return lambda: prefill(q, k, v, tables, rule)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--lengths", choices=("equal", "unequal"), default="equal")
    parser.add_argument("--documents", type=int, default=20)
    parser.add_argument("--mean-length", type=int, default=95)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--memory", action="store_true", help="peak memory instead of time")
    parser.add_argument("--one-peak", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.one_peak:
        print(peak_growth(args.one_peak, args.heads, args.groups))
        return
    where = {"torch": torch.__version__, "machine": platform.machine(), "threads": 1}
    if args.memory:
        for documents in (10, 20, 41):
            command = [
                sys.executable,
                __file__,
                "--one-peak",
                str(documents),
                "--heads",
                str(args.heads),
                "--groups",
                str(args.groups),
            ]
            grown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            tokens = make_layout(documents, 95, unequal=True).length
            print(
                json.dumps({"tokens": tokens, "peak_growth_mib": round(float(grown), 1), **where})
            )
        return
    layout = make_layout(args.documents, args.mean_length, args.lengths == "unequal")
    calls = candidates(layout, args.heads, args.groups, dtype=getattr(torch, args.dtype))
    medians = milliseconds(calls, args.rounds)
    print(
        json.dumps(
            {
                "tokens": layout.length,
                "documents": args.documents,
                "lengths": args.lengths,
                "heads": args.heads,
                "groups": args.groups,
                "dtype": args.dtype,
                "rounds": args.rounds,
                "median_ms": {name: round(value, 3) for name, value in medians.items()},
                "prefill_ratio": round(medians["pine"] / medians["causal"], 2),
                "prefill_ratio_with_lse": round(medians["pine with lse"] / medians["causal"], 2),
                **where,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
