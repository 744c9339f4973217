"""Triton kernels against PyTorch's operators at the shapes of real models: time, memory, error.

    python benchmarks/gpu_kernels.py --output benchmarks/results/gpu/kernels.json
    python benchmarks/gpu_kernels.py --device cpu --tiny    # the operators, on any machine

Random bfloat16 queries, keys and values of one layer; 20 documents of unequal lengths between 40
and 40 tokens. The reference is what PyTorch's operators compute in float32 from the same numbers;
PINE's compute in float32 whatever they are given. A row of the output is far from the reference
where the difference is more than a tenth of its length. Times are medians by CUDA events, as eager
PyTorch launches; ratios are to the unmodified model's call.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pine_op import make_layout
from reporting import Rows, facts
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from rag_middle.methods.document_blocks.kernels import Sharpening, attend_later
from rag_middle.methods.pine.kernels.attend import PineState, PineTables, decode, prefill
from rag_middle.methods.pine.kernels.launch import decode_triton, prefill_triton, rotate_triton
from rag_middle.methods.pine.kernels.tables import base_rotate
from rag_middle.methods.rotor.kernels.circle import CircleRotations, attend_circle
from rag_middle.methods.rotor.kernels.launch import attend_triton
from rag_middle.ops.prompt_kernels import PromptColumns, RotaryAngles
from rag_middle.ops.rope import RotaryStyle, WideTables, rotate_wide, wide_tables
from rag_middle.ops.rotate_heads import rotate_heads
from rag_middle.ops.scores import ScoreRule
from rag_middle.ops.spans import Span, SpanTables, attend_spans

#: Query heads, key heads, head size.
HEADS = {"7b": (32, 8, 128), "smollm2": (9, 3, 64), "tiny": (4, 2, 16)}
SHAPES = [("7b", tokens) for tokens in (1024, 4096, 8192, 32768)]
SHAPES += [("smollm2", tokens) for tokens in (1024, 8192, 4096)]
TINY = [("tiny", 200)]
DOCUMENTS, AROUND = 20, 40
SHARPENING = Sharpening(temperature=0.9, scale=0.9)

WAYS = ("unmodified", "reference", "kernel", "operators")

Call = Callable[[], tuple[Tensor, ...]]


class Operator(NamedTuple):
    """One step of a layer, and the ways to compute it; results are `[b, heads, n, d]`."""

    unmodified: Call
    reference: Call
    kernel: Call
    operators: Call


class Shape:
    """Random inputs of one layer."""

    def __init__(self, heads: int, groups: int, d: int, tokens: int, device: torch.device) -> None:
        torch.manual_seed(0)
        self.layout = make_layout(DOCUMENTS, (tokens - 2 * AROUND) // DOCUMENTS, unequal=True)
        n = self.layout.length
        self.d, self.device = d, device
        self.first, self.last = self.layout.prefix_tokens, self.layout.suffix_start
        # As a model has them: heads behind tokens in memory, and one generated token.
        q, self.keys, self.values = (
            torch.randn(1, n + 1, count, d, device=device, dtype=torch.bfloat16).transpose(1, 2)
            for count in (heads, groups, groups)
        )
        self.new_q, self.new_k = q[:, :, n:], self.keys[:, :, n:]
        self.q, self.k, self.v = (x[:, :, :n] for x in (q, self.keys, self.values))
        places = torch.arange(n + 1, device=device)[:, None]
        angles = places * 10000.0 ** -(torch.arange(0, d, 2, device=device) / d)
        self.cos, self.sin, self.style = angles.cos(), angles.sin(), RotaryStyle("half", d // 2)
        self.angles = RotaryAngles(self.cos, self.sin, self.style)
        self.rule = ScoreRule(scale=d**-0.5)
        self.columns = PromptColumns([self.layout], [0], device)
        self.attention = partial(scaled_dot_product_attention, enable_gqa=heads != groups)

    def pine_prompt(self) -> Operator:
        tables = PineTables(self.layout, self.angles)
        inputs = self.q, self.k, self.v
        whole = [x.float() for x in inputs]
        return Operator(
            lambda: (self.attention(*inputs, is_causal=True),),
            lambda: (prefill(*whole, tables, self.rule).out,),
            lambda: (
                prefill_triton(*inputs, self.columns, self.angles, self.rule)[0].transpose(1, 2),
            ),
            lambda: (prefill(*inputs, tables, self.rule).out,),
        )

    def pine_token(self) -> Operator:
        tables, n = PineTables(self.layout, self.angles), self.layout.length
        keys = base_rotate(self.keys, tables)
        state, whole = (
            PineState(tables, k[:, :, self.first : self.last]) for k in (self.k, self.k.float())
        )
        wide = self.new_q.float(), keys.float(), self.values.float()

        def kernel() -> tuple[Tensor, ...]:
            placed, _ = rotate_triton(self.new_q, self.new_k, self.columns, self.angles, n)
            out, _ = decode_triton(
                self.new_q, placed, keys, self.values, self.columns, self.angles, self.rule
            )
            return (out.transpose(1, 2),)

        return Operator(
            lambda: (self.attention(self.new_q, keys, self.values),),
            lambda: decode(*wide, whole, self.rule)[:1],
            kernel,
            lambda: decode(self.new_q, keys, self.values, state, self.rule)[:1],
        )

    def rotor_prompt(self) -> Operator:
        inputs = self.q, self.k, self.v
        whole = [x.float() for x in inputs]
        moves = CircleRotations.moves(self.layout)
        rotations, wide = (
            CircleRotations.of(self.cos[moves], self.sin[moves], self.layout, self.style, like)
            for like in (self.q, whole[0])
        )
        read = partial(attend_circle, layout=self.layout, scale=self.rule.scale)
        return Operator(
            lambda: (self.attention(*inputs, is_causal=True),),
            lambda: (read(*whole, rotations=wide).out,),
            lambda: (attend_triton(*inputs, self.columns, self.angles, self.rule).out,),
            lambda: (read(*inputs, rotations=rotations).out,),
        )

    def ms_poe_rotation(self) -> Operator:
        heads, groups, n = self.q.shape[1], self.k.shape[1], self.layout.length
        scales = torch.linspace(1.2, 1.8, heads, device=self.device)[:, None, None, None]
        angles = torch.arange(n, device=self.device)[:, None] / scales
        angles = angles * 10000.0 ** -(torch.arange(0, self.d, 2, device=self.device) / self.d)
        tables = WideTables(
            *(x.bfloat16() for x in wide_tables(angles.cos(), angles.sin(), self.style))
        )
        choice = torch.randint(heads, (1, 1, heads + groups), device=self.device)
        picked = [table[:, 0][choice[0, 0]][None] for table in tables]
        of_q, of_k = (WideTables(*(x[:, part] for x in picked)) for part in
                      (slice(heads), slice(heads, None)))  # fmt: skip
        plain = [torch.cat((x[:n], x[:n]), -1)[None].bfloat16() for x in (self.cos, self.sin)]

        def kernel() -> tuple[Tensor, ...]:
            copies = rotate_heads(self.q, self.k, tables, choice, self.style)
            return copies[0][..., 0, :], copies[1][..., 0, :]

        def operators(q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
            return rotate_wide(q, of_q, self.style), rotate_wide(k, of_k, self.style)

        return Operator(
            lambda: apply_rotary_pos_emb(self.q, self.k, *plain),
            lambda: operators(self.q.float(), self.k.float()),
            kernel,
            lambda: operators(self.q, self.k),
        )

    def ape_token(self) -> Operator:
        inputs = self.new_q, self.keys, self.values
        whole = [x.float() for x in inputs]
        scale, t, s = self.rule.scale, SHARPENING.temperature, SHARPENING.scale
        spans = [
            Span(0, self.first, scale),
            Span(self.first, self.last, scale / t, exponent=s * t),
            Span(self.last, -1, scale),
        ]
        tables = SpanTables.of([spans], self.device)
        read = partial(
            attend_later,
            layout=self.layout,
            rule=self.rule,
            positions=torch.arange(self.keys.shape[2], device=self.device),
            sharpening=SHARPENING,
        )
        return Operator(
            lambda: (self.attention(*inputs),),
            lambda: (read(*whole),),
            lambda: (attend_spans(*inputs, tables).out,),
            lambda: (read(*inputs),),
        )


OPERATORS: dict[str, Callable[[Shape], Operator]] = {
    "pine, prompt": Shape.pine_prompt,
    "rotor, prompt": Shape.rotor_prompt,
    "ms_poe, rotation of the prompt": Shape.ms_poe_rotation,
    "pine, generated token": Shape.pine_token,
    "ape, generated token": Shape.ape_token,
}


def measured(call: Call, device: str) -> dict[str, float]:
    """Median milliseconds, and MiB at the peak."""
    if device != "cuda":
        start = time.perf_counter()
        call()
        return {"ms": 1e3 * (time.perf_counter() - start)}
    call()  # compiles
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    times: list[float] = []
    end = time.monotonic() + 0.3
    while len(times) < 3 or (len(times) < 20 and time.monotonic() < end):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        call()
        events[1].record()
        torch.cuda.synchronize()
        times.append(events[0].elapsed_time(events[1]))
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    return {"ms": statistics.median(times), "peak_mib": round(peak, 1)}


def error(got: tuple[Tensor, ...], want: tuple[Tensor, ...]) -> dict[str, float]:
    """Relative error of the whole, and the share of rows that are far."""
    away = torch.cat([(x - y).norm(dim=-1).flatten() for x, y in zip(got, want, strict=True)])
    size = torch.cat([x.norm(dim=-1).flatten() for x in want])
    return {
        "relative_error": float(away.norm() / size.norm()),
        "far_rows": float((away > 0.1 * size).float().mean()),
    }


def rows_of(name: str, tokens: int, rows: Rows, args: argparse.Namespace) -> Iterator[None]:
    """Measure one shape; after each operator there is a place to stop."""
    shape = Shape(*HEADS[name], tokens, torch.device(args.device))
    for label, make in OPERATORS.items():
        key: dict[str, Any] = {"operator": label, "shape": name, "tokens": shape.layout.length}
        plain, want, ways = None, None, None
        for way in WAYS:
            if {**key, "way": way} in rows:
                continue
            with rows.row({**key, "way": way}) as row, torch.no_grad():
                ways = ways or make(shape)
                if way == "reference":  # slow and large: once
                    start = time.perf_counter()
                    want = ways.reference()
                    if args.device == "cuda":
                        torch.cuda.synchronize()
                    row["ms"] = 1e3 * (time.perf_counter() - start)
                    continue
                call = getattr(ways, way)
                row |= measured(call, args.device)
                if way == "unmodified":
                    plain = row["ms"]
                    continue
                if plain is not None:
                    row["ratio"] = row["ms"] / plain
                if want is not None:
                    row |= error(call(), want)
        del ways, want
        yield


def main() -> None:
    """Measure, and write each row as it is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true", help="one small shape")
    parser.add_argument("--seconds", type=float, default=90, help="when to begin no more")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--resume", action="store_true", help="keep the rows that are there")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("PyTorch finds no CUDA device. Nothing was measured.")
    end = time.monotonic() + args.seconds
    known = facts(args.device, clock="CUDA events", dtype="bfloat16", documents=DOCUMENTS)
    rows = Rows(args.output, known, ("operator", "shape", "tokens", "way"), resume=args.resume)
    for name, tokens in TINY if args.tiny else SHAPES:
        for _ in rows_of(name, tokens, rows, args):
            if time.monotonic() > end:
                print("The time is up: the shapes behind this one are not measured.")
                return


if __name__ == "__main__":
    main()
