"""What the LangChain wrapper costs, and what a batch gains: ratios, all measured in one run.

Every round answers the same prompts in each way in turn, so that a machine that slows down slows
all of them; a reported ratio is the median over rounds of the ratio within a round.

    python benchmarks/langchain_overhead.py --output benchmarks/results/langchain_overhead_cpu
    python benchmarks/langchain_overhead.py --model Qwen/Qwen2.5-0.5B-Instruct --method none pine
    python benchmarks/langchain_overhead.py --clock cpu    # on a machine shared with others

By default SmolLM2-135M-Instruct answers; ``--model random`` makes a model of its
size with random weights. ``ChatHuggingFace`` over ``HuggingFacePipeline`` runs the same weights on
the same prompts where langchain-huggingface is installed, next to the model's own ``generate``.
Nothing else here needs it. Its release 1.2 asks for an older huggingface-hub than transformers 5
brings, so it goes beside the environment, not into it::

    pip install --no-deps --target build/peer langchain-huggingface
    PYTHONPATH=build/peer python benchmarks/langchain_overhead.py
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers
from langchain_core.documents import Document
from langchain_core.messages import HumanMessage
from reporting import Facts, facts, report
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from langchain_rag_middle import ChatRagMiddle, format_docs
from rag_middle import RagMiddleModel
from rag_middle.documents import unmark
from rag_middle.generation import Usage
from rag_middle.small_model import default_model

#: Most that the wrapper may cost, and least that a batch of all prompts must gain.
TARGETS = {"wrapper": 1.03, "batch": 2.5}
PROMPTS = 8

Ways = dict[str, Callable[[], object]]


def prompts(count: int) -> list[str]:
    """Questions about `count` documents, of nearly equal length, marked."""
    names = [
        f"{first}{last}" for first in ("Bru", "Dre", "Fan", "Gre") for last in ("vo", "shi", "wik")
    ]
    documents = [
        Document(f"({name}) {name} costs ${41 + 7 * n}. To reset {name}, enter KT-{4071 + n}.")
        for n, name in enumerate(names)
    ]
    return [
        f"{format_docs((documents[n:] + documents[:n])[:count])}\n\n"
        f"Question: How do I reset {names[n]}?\nAnswer:"
        for n in range(PROMPTS)
    ]


def ways(folder: str, method: str, texts: list[str], max_tokens: int) -> tuple[Ways, Usage]:
    """Ways to answer all prompts; and the token counts of the first."""
    loaded = RagMiddleModel.from_pretrained(folder, method=method)
    chat = ChatRagMiddle(model=loaded, method=method, max_tokens=max_tokens)
    messages: list[Any] = [[HumanMessage(text)] for text in texts]
    turns = [[{"role": "user", "content": text}] for text in texts]

    def alone() -> list[str]:
        return [loaded.generate(each, max_new_tokens=max_tokens).text for each in turns]

    def invoked() -> list[str]:
        return [str(chat.invoke(each).content) for each in messages]

    def batched() -> list[str]:
        return [str(answer.content) for answer in chat.batch(messages)]

    expected = alone()
    for way in (invoked, batched):
        if way() != expected:
            print(f"{way.__name__}: other answers than alone", file=sys.stderr)
    usage = loaded.generate(turns[0], max_new_tokens=max_tokens).usage
    return {
        "RagMiddleModel.generate, one by one": alone,
        "ChatRagMiddle.invoke, one by one": invoked,
        f"ChatRagMiddle.batch of {PROMPTS}": batched,
    }, usage


def peer_ways(folder: str, texts: list[str], max_tokens: int) -> Ways:
    """The same with ChatHuggingFace, where it is installed; it is told of no documents."""
    try:
        from langchain_huggingface import ChatHuggingFace, HuggingFacePipeline
    except ImportError as error:
        print(
            f"ChatHuggingFace is left out ({error}). To have it: pip install --no-deps --target "
            "build/peer langchain-huggingface, and PYTHONPATH=build/peer.",
            file=sys.stderr,
        )
        return {}
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder)
    pipe: Any = transformers.pipeline(
        "text-generation",
        model=model,
        tokenizer=tokenizer,
        batch_size=PROMPTS,
        max_new_tokens=max_tokens,
        do_sample=False,
        return_full_text=False,
    )
    llm: Any = HuggingFacePipeline(pipeline=pipe, batch_size=PROMPTS)
    chat: Any = ChatHuggingFace(llm=llm, tokenizer=tokenizer)
    messages = [[HumanMessage(unmark(text))] for text in texts]
    rendered = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": unmark(text)}], tokenize=False, add_generation_prompt=True
        )
        for text in texts
    ]

    def alone() -> list[str]:
        answers = []
        for text in rendered:
            ids = tokenizer(text, return_tensors="pt")
            output = model.generate(**ids, max_new_tokens=max_tokens, do_sample=False)
            new = output[0, ids["input_ids"].shape[1] :]
            answers.append(str(tokenizer.decode(new, skip_special_tokens=True)))
        return answers

    all_ways: Ways = {
        "model.generate, one by one": alone,
        "ChatHuggingFace.invoke, one by one": lambda: [chat.invoke(each) for each in messages],
        f"ChatHuggingFace.batch of {PROMPTS}": lambda: chat.batch(messages),
        "HuggingFacePipeline.invoke, one by one": lambda: [llm.invoke(each) for each in rendered],
        f"HuggingFacePipeline.batch of {PROMPTS}": lambda: llm.batch(rendered),
    }
    expected = alone()
    for name, way in all_ways.items():
        answers: Any = way()
        if [getattr(answer, "content", answer) for answer in answers] != expected:
            print(f"{name}: other answers than model.generate", file=sys.stderr)
    return all_ways


def measure(args: argparse.Namespace, folder: str, method: str, documents: int) -> dict[str, Any]:
    """Seconds of every way in every round, and the ratios asked for."""
    clock = time.process_time if args.clock == "cpu" else time.perf_counter
    texts = prompts(documents)
    all_ways, usage = ways(folder, method, texts, args.max_tokens)
    all_ways |= peer_ways(folder, texts, args.max_tokens)
    seconds: dict[str, list[float]] = {name: [] for name in all_ways}
    for number in range(args.rounds + 1):
        for name, way in all_ways.items():
            start = clock()
            way()
            if number:  # the first round warms up
                seconds[name].append(clock() - start)
        print(
            f"{method}, {documents} documents: round {number}/{args.rounds}",
            file=sys.stderr,
            flush=True,
        )
    alone, invoked, batched, *peers = seconds.values()
    ratios = {"wrapper": _ratios(invoked, alone), "batch": _ratios(invoked, batched)}
    if peers:
        alone, invoked, batched, one_by_one, together = peers
        ratios["peer_wrapper"] = _ratios(invoked, alone)
        ratios["peer_batch"] = _ratios(invoked, batched)
        ratios["peer_pipeline_batch"] = _ratios(one_by_one, together)
    return {
        "method": method,
        "documents": documents,
        "prompt_tokens": usage.prompt_tokens,
        "new_tokens": usage.completion_tokens,
        "median_s": {name: statistics.median(values) for name, values in seconds.items()},
        "seconds": seconds,
        **ratios,
    }


def _ratios(numerator: list[float], denominator: list[float]) -> dict[str, float]:
    ratios = [a / b for a, b in zip(numerator, denominator, strict=True)]
    return {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}


@contextmanager
def model_folder(name: str | None) -> Iterator[str]:
    """Where the model is: named, the default one, or made for this run."""
    if name != "random":
        yield name or default_model()
        return
    with tempfile.TemporaryDirectory() as folder:
        _save_random_model(Path(folder))
        yield folder


def _save_random_model(folder: Path) -> None:
    """A LLaMA of about 1.5 million parameters, and a tokenizer with one token per byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(["<s>", "</s>", *alphabet])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>",
        chat_template="{% for m in messages %}{{ m['content'] }}{% endfor %}",
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=160,
        intermediate_size=432,
        num_hidden_layers=5,
        num_attention_heads=5,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: seconds per way, then the ratios beside their targets, in bold where missed."""
    lines = ["| method | documents | way | seconds |", "| --- | ---: | --- | ---: |"]
    for row in rows:
        for name, seconds in row["median_s"].items():
            lines.append(f"| {row['method']} | {row['documents']} | {name} | {seconds:.3f} |")
    names = ["wrapper", "target", "ChatHuggingFace", "batch gains", "target", "ChatHuggingFace"]
    names.append("HuggingFacePipeline")
    lines += ["", "| method | documents | tokens | " + " | ".join(names) + " |"]
    lines.append("| --- | ---: | ---: |" + " ---: |" * len(names))
    for row in rows:
        cells = [
            _shown(row, "wrapper", missed=row["wrapper"]["median"] > TARGETS["wrapper"]),
            f"at most {TARGETS['wrapper']}",
            _shown(row, "peer_wrapper"),
            _shown(row, "batch", missed=row["batch"]["median"] < TARGETS["batch"]),
            f"at least {TARGETS['batch']}",
            _shown(row, "peer_batch"),
            _shown(row, "peer_pipeline_batch"),
        ]
        lines.append(
            f"| {row['method']} | {row['documents']} | "
            f"{row['prompt_tokens']} + {row['new_tokens']} | {' | '.join(cells)} |"
        )
    return "\n".join(lines)


def _shown(row: dict[str, Any], name: str, *, missed: bool = False) -> str:
    ratio = row.get(name)
    if ratio is None:
        return "not installed"
    median = f"{ratio['median']:.3f}"
    median = f"**{median}**" if missed else median
    return f"{median} ({ratio['least']:.2f} to {ratio['most']:.2f})"


def page(rows: list[dict[str, Any]], known: Facts) -> str:
    """The page that `--output` writes: tables, the command, and what it was run with."""
    told = ", ".join(
        f"{name} {known[name]}" for name in ("langchain_core", "torch", "transformers")
    )
    return (
        "# What the LangChain wrapper costs, and what a batch gains\n\n"
        f"Seconds to answer the same {known['prompts']} prompts, the median over {known['rounds']} "
        f"rounds ({known['clock']}). `wrapper` is `ChatRagMiddle.invoke` to "
        "`RagMiddleModel.generate`, `batch gains` is one call after the other to one batch of all: "
        "medians of the ratios within a round, with the least and the most, in bold where they "
        "miss their target. The columns of `ChatHuggingFace` are the same of it: `invoke` to the "
        "model's own `generate`, and one call after the other to one batch; it knows no methods, "
        "so it answers the same under all. `HuggingFacePipeline` below it is the one that "
        "batches, given `batch_size`. `tokens` "
        f"are those of the first prompt and its answer.\n\n{table(rows)}\n\n"
        f"Repeat with `{known['command']}`. "
        f"{known['date']}; model: {known['model']}; {known['cores']} cores, {known['threads']} "
        f"threads; Python {known['python']}; rag-middle {known['rag_middle']}; {told}.\n"
    )


def main() -> None:
    """Measure, print tables, and write the numbers where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", help="folder, hub name or 'random'; by default SmolLM2-135M-Instruct"
    )
    parser.add_argument("--method", nargs="+", default=["none", "pine"], dest="methods")
    parser.add_argument("--documents", type=int, nargs="+", default=[4, 10], help="per prompt")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write FILE.json and FILE.md")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers.utils.logging.disable_progress_bar()
    with model_folder(args.model) as folder:
        rows = [
            measure(args, folder, method, documents)
            for method in args.methods
            for documents in args.documents
        ]
    known = facts(
        None,
        langchain_core=version("langchain-core"),
        cores=os.cpu_count(),
        model=args.model or "SmolLM2-135M-Instruct",
        prompts=PROMPTS,
        rounds=args.rounds,
        clock="CPU time of the process" if args.clock == "cpu" else "wall",
    )
    report(table(rows), rows, known, args.output)
    if args.output:
        args.output.with_suffix(".md").write_text(page(rows, known), encoding="utf-8")


if __name__ == "__main__":
    main()
