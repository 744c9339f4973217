"""The tests that need a GPU, and what methods cost on the one of this machine: steps of `gpu.sh`.

    python benchmarks/gpu.py tests --output benchmarks/results/gpu/tests.json
    python benchmarks/gpu.py methods --output benchmarks/results/gpu/methods.json
    python benchmarks/gpu_table.py    # Markdown, what a roofline predicts beside it

Shape of `methods`: Mistral 7B, random weights, bfloat16, every layer changed; prompts of 3300 and
8192 tokens, 20 documents between 40 and at least 40 tokens; a batch of one, 8 decode steps. Every
run of a method follows one of the unmodified model; a ratio is the median over rounds of a method's
time to that run's. Passes that a method takes before it reads the prompt count as prefill.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import statistics
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from gpu_roofline import DOCUMENTS, SHAPES, of_depth
from operation_counts import prompt_of
from overhead import DECODE_STEPS, METHODS, clock, run
from reporting import Rows, facts, write
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM, LlamaConfig

from rag_middle.attention import use_kernels
from rag_middle.methods import Method, NoMethod
from rag_middle.tokens import TokenizedPrompt

ROOT = Path(__file__).parent.parent
SHAPE = "7b_8_groups"
#: Methods that read the prompt once, the most asked for first; the others cost so many prefills.
ONCE = (
    "pine rotor ms_poe ape parallel_context_windows siw self_extend lpes position_interpolation "
    "positional_hidden_states structured_prompting no_inter_document_attention moice"
).split()
#: Likewise, less asked for.
LATER = "zero_tuning dsas set_based_prompting dysco cacheblend".split()
WITH_KERNELS = "pine rotor ms_poe ape self_extend moice".split()
TINY = {"hidden_size": 128, "intermediate_size": 64, "num_attention_heads": 4} | {
    "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 256,
}  # fmt: skip
PHASES = ("prefill", "decode", "peak")


def tests(args: argparse.Namespace) -> None:
    """Run the tests that need a GPU; what failed, with its error, is a row."""
    report = args.output.with_suffix(".xml")
    args.output.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default"]
    command += ["--timeout", "90", "--junitxml", str(report.absolute()), "tests/gpu"]
    if find_spec("xdist"):  # most of the time goes into compiling kernels
        command += ["-n", str(min(15, os.cpu_count() or 1)), "--dist", "worksteal"]
    start = time.monotonic()
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, _ = process.communicate(timeout=args.seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # pytest reports what has run
        try:
            out, _ = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, _ = process.communicate()
    print(out[-3000:])
    rows = []
    for case in ElementTree.parse(report).iter("testcase") if report.exists() else ():
        for problem in (*case.findall("failure"), *case.findall("error")):
            name = f"{case.get('classname')}::{case.get('name')}"
            rows.append({"test": name, "error": (problem.get("message") or "")[:800]})
    report.unlink(missing_ok=True)
    last = (out.strip().splitlines() or ["they did not start"])[-1]
    known = facts("cuda", summary=last, seconds=round(time.monotonic() - start), cuda=cuda())
    write(rows, known, args.output)


def cuda() -> dict[str, Any]:
    """What GPU there is."""
    if not torch.cuda.is_available():
        return {}
    return {
        "cuda": torch.version.cuda,
        "triton": __import__("triton").__version__ if find_spec("triton") else None,
        "gigabytes": round(torch.cuda.get_device_properties(0).total_memory / 1e9, 1),
    }


class Launches:
    """A clock that counts the kernels a CUDA device has been given."""

    def __init__(self) -> None:
        self._count = 0
        self._profile: profile | None = None

    def __call__(self, device: str) -> float:
        torch.cuda.synchronize()
        if self._profile is not None:
            self._profile.stop()
            self._count += sum(
                event.device_type == DeviceType.CUDA
                and not event.name.startswith(("Memcpy", "Memset", "gpu_"))
                for event in self._profile.events() or ()
            )
        self._profile = profile(activities=[ProfilerActivity.CUDA])
        self._profile.start()
        return self._count

    def stop(self) -> None:
        """Count no more."""
        if self._profile is not None:
            self._profile.stop()


def launches(model: Any, method: Method, prompt: TokenizedPrompt, device: str) -> dict[str, float]:
    """Kernels of a prefill and of a decode step, in all layers."""
    counting = Launches()
    try:
        prefill, steps = run(model, method, prompt, device, counting)
    finally:
        counting.stop()
    return {
        "prefill_launches": prefill,
        "decode_launches": steps / DECODE_STEPS,
        "layers": model.config.num_hidden_layers,
    }


def once(
    model: Any, method: Method, prompt: TokenizedPrompt, device: str
) -> tuple[float, float, float]:
    """Seconds of the prefill and of a decode step, and bytes at the peak."""
    if device != "cuda":
        prefill, steps = run(model, method, prompt, device)
        return prefill, steps / DECODE_STEPS, 0.0
    gc.collect()  # what the run before left is no part of this one's peak
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    prefill, steps = run(model, method, prompt, device)
    return prefill, steps / DECODE_STEPS, float(torch.cuda.max_memory_allocated() - before)


def measured(model: Any, method: Method, prompt: TokenizedPrompt, args: Any) -> dict[str, Any]:
    """Medians, and ratios to the unmodified model."""
    pairs = []
    for _ in range(args.rounds):
        plain = once(model, NoMethod(), prompt, args.device)
        pairs.append((once(model, method, prompt, args.device), plain))
    row: dict[str, Any] = {"rounds": len(pairs)}
    for index, phase in enumerate(PHASES):
        if not pairs[0][0][index]:
            continue
        unit = "bytes" if phase == "peak" else "s"
        ratios = [mine[index] / plain[index] for mine, plain in pairs]
        row[f"{phase}_{unit}"] = statistics.median(mine[index] for mine, _ in pairs)
        row[f"{phase}_ratio"] = statistics.median(ratios)
        row[f"{phase}_ratio_range"] = [min(ratios), max(ratios)]
    return row


def cases(args: argparse.Namespace) -> list[dict[str, Any]]:
    """What to measure: what matters most first. A profiler may slow down what comes after it."""
    chosen = args.methods or list(dict.fromkeys(["none", *ONCE, *LATER, *METHODS]))
    main = [name for name in chosen if name in ("none", *ONCE)]
    later = [name for name in chosen if name in LATER]
    rest = [name for name in chosen if name not in main + later]
    kernels = [name for name in main if name in WITH_KERNELS]
    short, *longer = args.tokens
    parts = [("time", short, main, "auto"), ("time", short, kernels, "torch")]
    parts += [("time", tokens, main, "auto") for tokens in longer]
    parts += [("time", short, later, "auto")]
    if args.device == "cuda":
        parts += [("launches", short, main + later, "auto"), ("launches", short, kernels, "torch")]
    parts += [("time", short, rest, "auto")]
    parts += [("time", tokens, kernels, "torch") for tokens in longer]
    parts += [("time", tokens, later, "auto") for tokens in longer]
    return [
        {"what": what, "method": name, "tokens": tokens, "kernels": choice}
        for what, tokens, names, choice in parts
        for name in names
    ]


def methods(args: argparse.Namespace) -> None:
    """Measure every method; each row is written as it is there."""
    end = time.monotonic() + args.seconds
    settings = SHAPES[SHAPE][1] | (TINY if args.tiny else {})
    if args.tiny:
        args.tokens, args.rounds = [200], 1
    layers = settings["num_hidden_layers"]
    config = LlamaConfig(
        **settings, max_position_embeddings=2 * max(args.tokens), attn_implementation="sdpa"
    )
    torch.manual_seed(0)
    with torch.device(args.device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    known = facts(
        args.device,
        dtype="bfloat16",
        documents=DOCUMENTS,
        model=f"{'tiny' if args.tiny else SHAPE}, {layers} layers, random weights, seed 0",
        cuda=cuda(),
    )
    rows = Rows(args.output, known, ("what", "method", "tokens", "kernels"), resume=args.resume)
    named: dict[str, Method] = {"none": NoMethod(), **METHODS}
    prompts = {tokens: prompt_of(tokens, DOCUMENTS) for tokens in args.tokens}
    run(model, named["none"], prompts[args.tokens[0]], args.device)
    gc.collect()
    gc.freeze()  # collections between runs then look at little
    for key in cases(args):
        if time.monotonic() > end:
            print(f"The time is up before {key}.")
            return
        if key in rows:
            continue
        with rows.row(key) as row, use_kernels(key["kernels"]):
            method, prompt = of_depth(named[key["method"]], layers), prompts[key["tokens"]]
            if key["what"] == "launches":
                row |= launches(model, method, prompt, args.device)
                continue
            start = clock(args.device)
            run(model, method, prompt, args.device)
            row["first_run_s"] = clock(args.device) - start  # compiling included
            row |= measured(model, method, prompt, args)


def main() -> None:
    """One step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    steps = parser.add_subparsers(required=True)
    testing = steps.add_parser("tests")
    testing.add_argument("--seconds", type=float, default=120, help="when to stop")
    testing.set_defaults(step=tests)
    measuring = steps.add_parser("methods")
    measuring.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    measuring.add_argument("--tiny", action="store_true", help="a small model and one short prompt")
    measuring.add_argument("--rounds", type=int, default=3)
    measuring.add_argument("--tokens", nargs="*", type=int, default=[3300, 8192])
    measuring.add_argument("--methods", nargs="*", choices=["none", *METHODS], metavar="METHOD")
    measuring.add_argument("--seconds", type=float, default=170, help="when to begin no more")
    measuring.add_argument("--resume", action="store_true", help="keep the rows that are there")
    measuring.set_defaults(step=methods)
    for step in (testing, measuring):
        step.add_argument("--output", type=Path, required=True, help="JSON: provenance and rows")
    args = parser.parse_args()
    if getattr(args, "device", "cuda") == "cuda" and not torch.cuda.is_available():
        raise SystemExit("PyTorch finds no CUDA device. Nothing was measured.")
    args.step(args)


if __name__ == "__main__":
    main()
