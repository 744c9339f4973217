"""PINE's attention operator against one causal attention call of the same shape.

    python benchmarks/pine_op.py [--lengths equal|unequal] [--heads 8] [--groups 8] [--rounds 15]

One thread, float32, CPU. Rounds interleave all candidates, so that a busy machine hurts them alike;
medians are reported. Peak memory is the growth of the process's resident set over one prefill.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from reporting import facts
from torch.nn.functional import scaled_dot_product_attention

from rag_middle.layout import PromptLayout
from rag_middle.methods.pine.kernels.attend import (
    PineTables,
    ScoreRule,
    base_rotate,
    decode,
    prefill,
)
from rag_middle.ops.prompt_kernels import RotaryAngles
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
    layout: PromptLayout,
    heads: int,
    groups: int,
    d: int = 64,
    dtype: torch.dtype = torch.float32,
    run_once: bool = True,
) -> dict[str, Callable[[], object]]:
    """Calls by name; those of decoding need a prefill, so they are there with `run_once` only."""
    n = layout.length
    torch.manual_seed(0)
    q = torch.randn(1, heads, n, d, dtype=dtype)
    k, v = torch.randn(2, 1, groups, n, d, dtype=dtype)
    angle = torch.arange(n + 64)[:, None] * 10000.0 ** -(torch.arange(0, d, 2) / d)
    angles = RotaryAngles(angle.cos(), angle.sin(), RotaryStyle("half", d // 2))
    tables = PineTables(layout, angles)
    rule = ScoreRule(scale=d**-0.5)
    attention = partial(scaled_dot_product_attention, enable_gqa=heads != groups)
    calls: dict[str, Callable[[], object]] = {
        "causal": lambda: attention(q, k, v, is_causal=True),
        "pine": lambda: prefill(q, k, v, tables, rule),
        "pine with lse": lambda: prefill(q, k, v, tables, rule, need_lse=True),
    }
    if run_once:
        first = prefill(q, k, v, tables, rule)
        new_q = torch.randn(1, heads, 1, d, dtype=dtype)
        new_k = torch.randn(1, groups, 1, d, dtype=dtype)
        keys = torch.cat((first.rotated_keys, base_rotate(new_k, tables, n)), dim=2)
        values = torch.cat((v, new_k), dim=2)
        calls["causal step"] = lambda: attention(new_q, keys, values)
        calls["pine step"] = lambda: decode(new_q, keys, values, first.state, rule)
    return calls


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
    small = candidates(make_layout(2, 10, unequal=True), heads, groups)
    small["pine"]()  # libraries load on first use
    call = candidates(make_layout(documents, 95, unequal=True), heads, groups, run_once=False)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    call["pine"]()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


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
    if args.memory:
        rows = [memory_row(documents, args) for documents in (10, 20, 41)]
        known = facts("cpu", timed=False)
    else:
        rows = [timing_row(args)]
        known = facts("cpu", clock="wall", rounds=args.rounds)
    print(json.dumps({"provenance": known, "rows": rows}, indent=1))


def memory_row(documents: int, args: argparse.Namespace) -> dict[str, Any]:
    """Peak memory of one prefill, in a fresh process."""
    shape = ["--heads", str(args.heads), "--groups", str(args.groups)]
    command = [sys.executable, __file__, "--one-peak", str(documents), *shape]
    grown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    tokens = make_layout(documents, 95, unequal=True).length
    return {"tokens": tokens, "peak_growth_mib": round(float(grown), 1)}


def timing_row(args: argparse.Namespace) -> dict[str, Any]:
    """Median times of all candidates, and PINE's to the causal call's."""
    layout = make_layout(args.documents, args.mean_length, args.lengths == "unequal")
    calls = candidates(layout, args.heads, args.groups, dtype=getattr(torch, args.dtype))
    medians = milliseconds(calls, args.rounds)
    return {
        "tokens": layout.length,
        "documents": args.documents,
        "lengths": args.lengths,
        "heads": args.heads,
        "groups": args.groups,
        "dtype": args.dtype,
        "median_ms": {name: round(value, 3) for name, value in medians.items()},
        "prefill_ratio": round(medians["pine"] / medians["causal"], 2),
        "prefill_ratio_with_lse": round(medians["pine with lse"] / medians["causal"], 2),
    }


if __name__ == "__main__":
    main()
