"""What methods cost on this machine's GPU, measured, beside what a roofline predicts.

One command, under ten minutes: the tests that need a GPU, then prefill, decode and peak memory of
every method in ratios to the unmodified model, each beside its predicted figure. Every round runs
the plain model and each method in turn; a ratio is the median over rounds of a method's time to
the plain model's of that round. Methods that time runs out for are named as not measured.

    python benchmarks/gpu.py --output benchmarks/results/gpu
    python benchmarks/gpu.py --device cpu --tiny      # whether it runs, on a machine without a GPU

Shape: LLaMA 2 7B with 8 of its 32 layers (`--layers`), random weights, bfloat16, every layer
changed; prompts of 2048, 4096 and 8192 tokens, 20 documents between 40 and at least 40 tokens; a
batch of one, 8 decode steps. Fewer layers leave ratios nearly as they are: what is outside of the
layers weighs a little more.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from gpu_roofline import DOCUMENTS, SHAPES, of_depth
from operation_counts import GPUS, Gpu, MethodWork, count_method, prompt_of, without_numbers
from overhead import DECODE_STEPS, METHODS, run
from reporting import facts, report
from transformers import LlamaConfig, LlamaForCausalLM

from rag_middle.methods import Method, NoMethod
from rag_middle.tokens import TokenizedPrompt

TOKENS = (2048, 4096, 8192)
#: Methods that read the prompt once; the others cost so many prefills.
ONCE = (
    "position_interpolation lpes ms_poe positional_hidden_states siw pine rotor self_extend "
    "no_inter_document_attention parallel_context_windows structured_prompting ape moice"
).split()
TINY = {"hidden_size": 128, "intermediate_size": 64, "num_attention_heads": 4, "vocab_size": 99}
PHASES = ("prefill", "decode", "peak")


def this_gpu(device: str) -> Gpu | None:
    """Data sheet of the GPU at hand, if there is one."""
    if device != "cuda":
        return None
    name = torch.cuda.get_device_name().replace(" ", "").lower()
    return next((gpu for key, gpu in GPUS.items() if key.removeprefix("rtx") in name), None)


def measured(
    model: LlamaForCausalLM, methods: dict[str, Method], prompt: TokenizedPrompt, args: Any
) -> dict[str, dict[str, Any]]:
    """Seconds and bytes of every method, and ratios to the unmodified model; a row each."""
    values: dict[str, list[tuple[float, ...]]] = {name: [] for name in methods}
    for round_number in range(args.rounds + 1):
        for name, method in methods.items():
            if time.monotonic() > args.deadline:
                break
            if args.device == "cuda":
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
            times = run(model, method, prompt, args.device)
            peak = torch.cuda.max_memory_allocated() - before if args.device == "cuda" else 0
            if round_number:  # the first round warms up
                values[name].append((times[0], times[1] / DECODE_STEPS, float(peak)))
    rows: dict[str, dict[str, Any]] = {}
    for name, rounds in values.items():
        pairs = list(zip(rounds, values["none"], strict=False))
        rows[name] = {"rounds": len(pairs)}
        for index, phase in enumerate(PHASES):
            if pairs and pairs[0][0][index]:
                unit = "bytes" if phase == "peak" else "s"
                ratios = [mine[index] / plain[index] for mine, plain in pairs]
                rows[name][f"{phase}_{unit}"] = statistics.median(mine[index] for mine, _ in pairs)
                rows[name][f"{phase}_ratio"] = statistics.median(ratios)
                rows[name][f"{phase}_ratio_range"] = [min(ratios), max(ratios)]
    return rows


def predicted(work: MethodWork, plain: MethodWork, gpu: Gpu | None) -> dict[str, Any]:
    """Ratios from counted operations; of time only where the GPU's data sheet is known."""
    ratios = {"peak_predicted": work.prefill.peak_bytes / plain.prefill.peak_bytes}
    if gpu is not None:
        for phase in ("prefill", "decode"):
            ours, base = (
                max(gpu.computing(getattr(x, phase)), gpu.launching(getattr(x, phase)))
                for x in (work, plain)
            )
            ratios[f"{phase}_predicted"] = ours / base
    return ratios


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: measured ratios, predicted ones in brackets."""
    lines = []
    for tokens in dict.fromkeys(row["tokens"] for row in rows):
        lines += ["", f"## {tokens} tokens: measured (predicted)", ""]
        lines += ["| method | prefill | decode | peak memory |", "| --- | ---: | ---: | ---: |"]
        for row in (row for row in rows if row["tokens"] == tokens):
            cells = " | ".join(
                f"{_number(row, phase, 'ratio')} ({_number(row, phase, 'predicted')})"
                for phase in PHASES
            )
            lines.append(f"| {row['method']} | {cells} |")
    return "\n".join(lines).strip()


def _number(row: dict[str, Any], phase: str, kind: str) -> str:
    value = row.get(f"{phase}_{kind}")
    return "not measured" if value is None and kind == "ratio" else f"{value:.2f}" if value else "-"


def tests_on_gpu() -> str:
    """The last line of the tests that need a GPU."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu"]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    print(done.stdout[-4000:], file=sys.stderr)
    return (done.stdout.strip().splitlines() or ["they did not start"])[-1]


def main() -> None:
    """Test, measure, print tables, and write the numbers where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true", help="a small model and one short prompt")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", nargs="*", type=int, default=list(TOKENS))
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=ONCE, metavar="METHOD")
    parser.add_argument("--minutes", type=float, default=9, help="when to stop measuring")
    parser.add_argument("--no-tests", action="store_true", help="measure only")
    parser.add_argument("--output", type=Path, help="write provenance and rows as JSON")
    args = parser.parse_args()
    args.deadline = time.monotonic() + 60 * args.minutes
    if args.device == "cuda" and not torch.cuda.is_available():
        print("Skipped: PyTorch finds no CUDA device. Nothing was measured.")
        return
    if args.tiny:
        args.tokens, args.rounds, args.layers = [120], 1, 2
    tests = "not run" if args.no_tests or args.device == "cpu" else tests_on_gpu()
    settings = SHAPES["7b"][1] | (TINY if args.tiny else {}) | {"num_hidden_layers": args.layers}
    config = LlamaConfig(
        **settings, max_position_embeddings=2 * max(args.tokens), attn_implementation="sdpa"
    )
    torch.manual_seed(0)
    with torch.device(args.device):
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    named = {"none": NoMethod(), **{name: METHODS[name] for name in args.methods}}
    methods = {name: of_depth(method, args.layers) for name, method in named.items()}
    gpu, counting = this_gpu(args.device), without_numbers(config)
    rows: list[dict[str, Any]] = []
    for tokens in args.tokens:
        prompt = prompt_of(tokens, 4 if args.tiny else DOCUMENTS)
        plain = count_method(counting, methods["none"], prompt)
        for name, row in measured(model, methods, prompt, args).items():
            work = count_method(counting, methods[name], prompt)
            rows.append({"method": name, "tokens": tokens, **row, **predicted(work, plain, gpu)})
        print(f"{tokens} tokens", file=sys.stderr, flush=True)
    shape = "tiny" if args.tiny else f"LLaMA 2 7B, {args.layers} of 32 layers"
    known = facts(
        args.device,
        dtype="bfloat16",
        rounds=args.rounds,
        documents=DOCUMENTS,
        model=f"{shape}, random weights, seed 0",
        predicted_for=gpu.name if gpu else "no GPU whose data sheet is at hand",
        gpu_tests=tests,
        cuda=torch.version.cuda,
    )
    report(table(rows), rows, known, args.output)


if __name__ == "__main__":
    main()
