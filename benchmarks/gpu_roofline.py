"""What methods cost on a GPU, predicted on a machine without one.

Every method runs on models that hold no numbers, in bfloat16. Its operations are counted, and a
roofline over data sheets says how long they take: arithmetic or memory traffic, whichever is
longer. What attention reaches of an H200's peak, and what a launch costs the host, was measured;
A100 and RTX 4090 are taken to reach half of theirs. What a roofline leaves out: overlap, kernels
that are slower than these, and Python of methods between launches, which decides about generated
tokens at a batch of one. Ratios to the unmodified model are more reliable than times.

    python benchmarks/gpu_roofline.py
    python benchmarks/gpu_roofline.py --shapes 7b --tokens 3300 --methods pine rotor

Shapes: LLaMA 2 7B, Mistral 7B, Qwen2.5 14B and LLaMA 3 70B (the last three with grouped queries).
Prompts: 20 documents of one length between 40 and at least 40 tokens. Methods change every layer.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from operation_counts import GPUS, Gpu, MethodWork, Work, count_method, prompt_of, without_numbers
from overhead import METHODS
from reporting import facts, report
from transformers import LlamaConfig, PretrainedConfig, Qwen2Config

from rag_middle.attention import use_kernels
from rag_middle.methods import (
    LPES,
    SIW,
    Compose,
    DySCO,
    Method,
    MsPoE,
    NoMethod,
    PositionalHiddenStates,
)

#: Layers of the models that are counted; what one more adds is the rest of the depth times taken.
DEPTHS = (4, 8)
DOCUMENTS = 20
SHAPES: dict[str, tuple[type[PretrainedConfig], dict[str, Any]]] = {
    "7b": (
        LlamaConfig,
        {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32}
        | {"num_attention_heads": 32, "vocab_size": 32000},
    ),
    "7b_8_groups": (  # Mistral 7B
        LlamaConfig,
        {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
        | {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000},
    ),
    "14b": (
        Qwen2Config,
        {"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 48}
        | {"num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 152064},
    ),
    "70b": (
        LlamaConfig,
        {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80}
        | {"num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256},
    ),
}
TOKENS = (1980, 3300, 4000, 8192, 32768)


def of_depth(method: Method, layers: int) -> Method:
    """The method with every one of `layers` layers changed."""
    if isinstance(method, Compose):
        return Compose(methods=[of_depth(part, layers) for part in method.methods])
    if isinstance(method, LPES):
        return LPES(factors=tuple(1 + index / 100 for index in range(layers)))
    if isinstance(method, MsPoE):
        return MsPoE(first_layer=0)
    if isinstance(method, PositionalHiddenStates):
        every = tuple(range(layers))
        return PositionalHiddenStates(channels=(100,), factor=-1.0, layers=every)
    if isinstance(method, DySCO):  # what is read twice ends after the last retrieval head
        return DySCO(heads=((3 * layers // 4, 0),))
    return SIW(layers=tuple(range(layers))) if isinstance(method, SIW) else method


class Counted:
    """The work of a method in models of both `DEPTHS`."""

    def __init__(self, works: list[MethodWork], layers: int) -> None:
        self.fewer, self.more = works
        self.layers = layers

    def of(self, phase: str, measure: Any) -> float:
        """A figure of the whole model."""
        few, many = (measure(getattr(work, phase)) for work in (self.fewer, self.more))
        return float(few + (many - few) * (self.layers - DEPTHS[0]) / (DEPTHS[1] - DEPTHS[0]))

    def per_layer(self, phase: str, measure: Any) -> float:
        """A figure of one layer."""
        few, many = (measure(getattr(work, phase)) for work in (self.fewer, self.more))
        return float((many - few) / (DEPTHS[1] - DEPTHS[0]))


def launches(work: Work) -> int:
    """Kernels."""
    return work.launches


def seconds(gpu: Gpu, method: Counted, phase: str, passes: Counted) -> tuple[float, float]:
    """Of computing and of launching, passes before the prompt is read included."""
    before = method.fewer.passes if phase == "prefill" else 0
    return (
        method.of(phase, gpu.computing) + before * passes.of(phase, gpu.computing),
        method.of(phase, gpu.launching) + before * passes.of(phase, gpu.launching),
    )


def rows_of(shape: str, tokens: int, methods: dict[str, Method]) -> list[dict[str, Any]]:
    """One row per method and GPU."""
    kind, settings = SHAPES[shape]
    layers = settings["num_hidden_layers"]
    models = [without_numbers(kind(**settings | {"num_hidden_layers": d})) for d in DEPTHS]
    prompt = prompt_of(tokens, DOCUMENTS)
    rows: list[dict[str, Any]] = []
    plain: Counted | None = None
    for name, method in {"none": NoMethod(), **methods}.items():
        works = [
            count_method(model, of_depth(method, depth), prompt)
            for model, depth in zip(models, DEPTHS, strict=True)
        ]
        counted = Counted(works, layers)
        plain = plain or counted
        for key, gpu in GPUS.items():
            row: dict[str, Any] = {"shape": shape, "tokens": tokens, "gpu": key, "method": name}
            for phase in ("prefill", "decode"):
                ours, base = (seconds(gpu, x, phase, plain) for x in (counted, plain))
                row[f"{phase}_ms"] = 1e3 * max(ours)
                row[f"{phase}_ratio_computing"] = ours[0] / base[0]
                row[f"{phase}_ratio"] = max(ours) / max(base)
                row[f"{phase}_launches_per_layer"] = counted.per_layer(phase, launches)
                row[f"{phase}_uploads"] = counted.of(phase, lambda work: work.uploads)
            row["peak_gb"] = counted.of("prefill", lambda work: work.peak_bytes) / 1e9
            rows.append(row)
        print(shape, tokens, name, file=sys.stderr, flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: ratios by shape, GPU and method; a column for each length."""
    lengths = sorted({row["tokens"] for row in rows})
    by_key: dict[tuple[str, str, str], dict[int, dict[str, Any]]] = {}
    for row in rows:
        by_key.setdefault((row["shape"], row["gpu"], row["method"]), {})[row["tokens"]] = row
    parts: list[str] = []
    heading: tuple[str, str] | None = None
    for (shape, gpu, method), at in by_key.items():
        if (shape, gpu) != heading:
            heading = (shape, gpu)
            columns = " | ".join(f"prefill, {n} | decode" for n in lengths)
            parts += [
                "",
                f"## {shape}, {GPUS[gpu].name} (predicted)",
                "",
                f"| method | {columns} |",
                "| --- |" + " ---: | ---: |" * len(lengths),
            ]
        cells = " | ".join(
            f"{at[n]['prefill_ratio']:.2f} | {at[n]['decode_ratio']:.2f}" for n in lengths
        )
        parts.append(f"| {method} | {cells} |")
    return "\n".join(parts).strip()


def main() -> None:
    """Count, print tables, and write the numbers where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="*", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--tokens", nargs="*", type=int, default=list(TOKENS))
    parser.add_argument("--methods", nargs="*", choices=METHODS, metavar="METHOD")
    parser.add_argument("--kernels", choices=("auto", "torch"), default="auto")
    parser.add_argument("--output", type=Path, help="write provenance and rows as JSON")
    args = parser.parse_args()
    chosen = {name: METHODS[name] for name in args.methods or METHODS}
    with use_kernels(args.kernels):
        rows = [
            row
            for shape in args.shapes
            for tokens in args.tokens
            for row in rows_of(shape, tokens, chosen)
        ]
    rows.sort(key=lambda row: (row["shape"], row["gpu"]))
    known = facts(
        None,
        timed=False,
        figures="predicted: counted operations, data sheets, parts of an H200's peak as measured",
        dtype="bfloat16",
        documents=DOCUMENTS,
    )
    report(table(rows), rows, known, args.output)


if __name__ == "__main__":
    main()
