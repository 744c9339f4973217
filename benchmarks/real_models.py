"""Does a method help a pretrained model? Answers and likelihoods by position, kept and resumed.

    python benchmarks/real_models.py --model smollm2 --weights DIR --documents 10 \\
        --methods none pine rotor --limit 100 [--device cuda --dtype bfloat16 --batch 32]
    python benchmarks/real_models_table.py

The first appends one JSON line per answer to ``benchmarks/results/real_models/`` and continues
where it stopped. The second computes the tables of ``docs/does_it_help.md`` from the records.

Questions are lines 700 to 1,299 of ``benchmarks/data/natural_questions.jsonl.gz`` (fitting: lines
1,300 on, ``--fit``), distractors the passages most like the question that hold no answer, by
all-MiniLM-L6-v2 (``nearest`` in the data). The
prompt is that of the Lost in the Middle benchmark without ranks, in the model's chat template;
decoding is greedy, 24 tokens; the first line of the answer counts (sub-span match). The
log-likelihood is that of the first right answer after the prompt. Key-value retrieval has pairs of
eight characters.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from rag_middle import ContextPrompt, Document, RagMiddleModel
from rag_middle.errors import RagMiddleError
from rag_middle.evaluation.conditions import CLOSED_BOOK, GOLD_ONLY, Condition, Item, position
from rag_middle.evaluation.metrics import best_subspan_em
from rag_middle.evaluation.tasks import Task
from rag_middle.evaluation.tasks.key_value import KeyValueRetrieval
from rag_middle.evaluation.tasks.questions import MultiDocumentQA
from rag_middle.methods import Method, method_name, resolve_method
from rag_middle.methods.dysco.detection import retrieval_heads

DATA = Path(__file__).parent / "data" / "natural_questions.jsonl.gz"
RESULTS = Path(__file__).parent / "results" / "real_models"
REPORTED, FITTED = slice(700, 1300), slice(1300, 2000)
NEW_TOKENS = 24
CONTROLS = ("gold_only", "closed_book")  # asked under the first method only
RANKED = ("best_first", "best_last")

#: Label -> method with parameters, of what is not simply a method at its defaults.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "attention_buckets 1.0-1.1": ("attention_buckets", {"base_factors": (1.0, 1.03, 1.06, 1.1)}),
    "moice uniform": ("moice", {"routers": "uniform"}),
    "self_extend 256": ("self_extend", {"window": 256}),
    "pine no_reassignment": ("pine", {"ablation": "no_reassignment"}),
    "pine reversed": ("pine", {"ablation": "reversed"}),
    **{f"position_interpolation {s}": ("position_interpolation", {"scale": s})
       for s in (0.5, 0.9, 1.05, 1.1, 1.2, 1.5, 2.0)},
    **{f"ms_poe 1.0-1.2 {order}": ("ms_poe", {"max_ratio": 1.2, "min_ratio": 1.0,
                                              "head_order": order})
       for order in ("awareness", "entropy", "random", "sequential")},
    "ms_poe 1.0-1.2 code": ("ms_poe", {"min_ratio": 1.0, "max_ratio": 1.2,
                                       "reference_code": True}),
    **{f"zero_tuning {f}": ("zero_tuning", {"factor": f}) for f in (0.7, 1.5, 2.0)},
    **{f"lpes linear {a}-{b}": ("lpes", {"factors": [a, b]}) for a, b in ((1.0, 1.1), (1.1, 1.0))},
    "siw 0.7-1.3": ("siw", {"alpha_dense": 0.7, "alpha_sparse": 1.3}),
    "siw 1.1-0.9": ("siw", {"alpha_dense": 1.1, "alpha_sparse": 0.9}),
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One file of records: a model on a task with so many documents."""

    model: str
    task: str
    documents: int
    fit: bool = False

    @property
    def file(self) -> str:
        return f"{self.model}_{self.task}{self.documents}{'_fit' * self.fit}.jsonl"


def method_of(label: str, model: RagMiddleModel) -> Method:
    """The method of a label: its name, a label of `VARIANTS`, or ``LABEL=NAME`` with options."""
    name, _, options = (label.partition("=")[2] or label).partition(" with ")
    if name in VARIANTS:
        name, settings = VARIANTS[name]
    else:
        settings = json.loads(options or "{}")
    if name == "lpes" and len(settings.get("factors", ())) == 2:  # a straight line over the layers
        first, last = settings["factors"]
        layers = model.model.config.num_hidden_layers
        step = (last - first) / (layers - 1)
        settings = {"factors": tuple(first + step * layer for layer in range(layers))}
    if name == "dysco" and not settings:
        settings = {"heads": retrieval_heads(model.model)}
    return resolve_method(name, settings or None)


def question_file(fit: bool) -> Path:
    """All questions as a file of lines, those that are asked first; made where it is missing."""
    path = Path("build/real_models") / ("fitting.jsonl" if fit else "reported.jsonl")
    if not path.exists():
        with gzip.open(DATA, "rt", encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        first = (FITTED if fit else REPORTED).start
        for line in lines:
            line["nearest"] = [(other - first) % len(lines) for other in line.get("nearest", ())]
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(line) + "\n" for line in lines[first:] + lines[:first])
        made = path.with_suffix(f".{os.getpid()}")
        made.write_text(text, encoding="utf-8")
        made.replace(path)
    return path


def questions(cell: Cell, limit: int) -> tuple[Task, list[Item]]:
    if cell.task == "kv":
        task: Task = KeyValueRetrieval(keys=cell.documents, identifier_characters=8)
        return task, list(task.items(limit, 1 if cell.fit else 0))
    task = MultiDocumentQA(
        data=question_file(cell.fit), documents=cell.documents, distractors="hard"
    )
    return task, list(task.items(limit, 0))


class Ranking:
    """Documents of a question in the order of an embedding retriever, the best first."""

    def __init__(self, fit: bool) -> None:
        with question_file(fit).open(encoding="utf-8") as file:
            self._lines = [json.loads(line) for line in file]

    def __call__(self, item: Item) -> tuple[Document, ...]:
        nearest = self._lines[int(item.id)]["nearest"]
        ranks = {self._lines[other]["text"]: rank for rank, other in enumerate(nearest)}

        def rank(document: Document) -> int:
            known = (r for text, r in ranks.items() if document.text.endswith(text))
            return min(known, default=len(nearest))

        return tuple(sorted(item.documents, key=rank))


def prompts(
    task: Task, item: Item, conditions: Sequence[str], ranking: Ranking | None
) -> Iterator[tuple[str, ContextPrompt]]:
    """The prompt of each condition."""
    for name in conditions:
        if name in RANKED:
            assert ranking is not None
            ranked = ranking(item)
            template = task.prompt(item, GOLD_ONLY)
            documents = ranked if name == "best_first" else ranked[::-1]
            yield name, ContextPrompt(template.prefix, documents, template.suffix)
        else:
            yield name, task.prompt(item, _condition(name))


def _condition(name: str) -> Condition:
    if name.startswith("position:"):
        return position(int(name.partition(":")[2]))
    return {"gold_only": GOLD_ONLY, "closed_book": CLOSED_BOOK}[name]


def ask(
    model: RagMiddleModel, method: Method, asked: Sequence[tuple[ContextPrompt, str]], batch: int
) -> Iterator[dict[str, Any]]:
    """An answer to each prompt, and the log-likelihood of the right one."""
    texts, targets = zip(*asked, strict=True)
    answers = model.batch(
        texts, method=method, max_batch_size=batch, max_new_tokens=NEW_TOKENS, stop=["\n"]
    )
    scores = model.score_batch(texts, targets, method=method, max_batch_size=batch)
    for said, score in zip(answers, scores, strict=True):
        answer = {"text": said.text, "log_likelihood": score.total,
                  "prompt_tokens": said.usage.prompt_tokens, "kernels": said.kernels}  # fmt: skip
        if batch == 1:  # else it is the time of all
            answer["first_token_s"] = said.timings.prefill
        yield answer


def run(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(arguments.threads)
    cell = Cell(arguments.model, arguments.task, arguments.documents, arguments.fit)
    path = arguments.results / cell.file
    path.parent.mkdir(parents=True, exist_ok=True)
    model = RagMiddleModel.from_pretrained(
        arguments.weights,
        tokenizer=arguments.tokenizer,
        dtype=arguments.dtype,
        device=arguments.device,
    )
    task, items = questions(cell, arguments.limit)
    done = set()
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if "method" in record:
                done.add((record["method"], record["condition"], record["question"]))
    last = cell.documents - 1
    conditions = arguments.conditions or [f"position:{p}" for p in (0, last // 2, last)]
    ranking = Ranking(cell.fit) if {*conditions} & {*RANKED} else None
    chat = "" if model.tokenizer.chat_template else " "
    with path.open("a", encoding="utf-8") as file:

        def write(record: dict[str, Any]) -> None:
            print(json.dumps(record, ensure_ascii=False), file=file, flush=True)

        methods = {}
        for label in arguments.methods:
            try:
                methods[label.partition("=")[0]] = method_of(label, model)
            except (RagMiddleError, torch.OutOfMemoryError) as error:
                print(f"{label} is left out: {error}", flush=True)
        write({"provenance": {
            "weights": _digest(arguments.weights), "dtype": arguments.dtype,
            "threads": arguments.threads, "batch": arguments.batch, "software": model.software(),
            "methods": {label: repr(m) for label, m in methods.items()}}})  # fmt: skip
        size = max(1, arguments.batch)
        asked_once: dict[tuple[str, str], dict[str, Any]] = {}
        for start in range(0, len(items), size):
            for label, method in [*methods.items()]:
                for condition in conditions:
                    if condition in CONTROLS and method is not next(iter(methods.values())):
                        continue
                    due = [
                        item for item in items[start : start + size]
                        if (label, condition, item.id) not in done
                    ]  # fmt: skip
                    if not due:
                        continue
                    asked = [
                        (prompt, chat + item.answers[0])
                        for item in due
                        for _, prompt in prompts(task, item, [condition], ranking)
                    ]
                    again = [item for item in due if (label, item.id) in asked_once]
                    if method.order_free and condition.startswith("position:") and again == due:
                        for item in due:
                            same = {"condition": condition, "repeated": True}
                            write({**asked_once[label, item.id], **same})
                        continue
                    began = perf_counter()
                    try:
                        answers = [*ask(model, method, asked, size)]
                    except torch.OutOfMemoryError:
                        torch.cuda.empty_cache()
                        answers = [*ask(model, method, asked, max(1, size // 8))]
                    except (RagMiddleError, RuntimeError) as error:
                        print(f"{label} ends at {condition}: {error}", flush=True)
                        methods.pop(label, None)
                        break
                    seconds = (perf_counter() - began) / len(due)
                    for item, answer in zip(due, answers, strict=True):
                        said = answer["text"].strip().partition("\n")[0]
                        right = bool(best_subspan_em(said, item.answers))
                        record = {**answer, "method": label, "condition": condition,
                                  "question": item.id, "name": method_name(method),
                                  "seconds": round(seconds, 4), "correct": right}  # fmt: skip
                        if condition.startswith("position:"):
                            asked_once[label, item.id] = record
                        write(record)
            print(start + size, end=" ", flush=True)


def _digest(weights: str) -> str:
    files = sorted(Path(weights).glob("*.safetensors")) if Path(weights).is_dir() else [weights]
    digest = hashlib.sha256()
    for file in files:
        with open(file, "rb") as content:
            while block := content.read(1 << 24):
                digest.update(block)
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="name in records: smollm2, qwen05, qwen15")
    parser.add_argument("--weights", required=True, help="folder, or a .gguf file")
    parser.add_argument("--tokenizer", help="folder, where the weights are a file without one")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=1, help="prompts read at a time")
    parser.add_argument("--task", choices=["nq", "kv"], default="nq")
    parser.add_argument("--documents", type=int, default=10)
    parser.add_argument(
        "--methods",
        nargs="+",
        default=["none"],
        help="names, labels of VARIANTS, or LABEL=NAME, LABEL=NAME with {JSON of its options}",
    )
    parser.add_argument("--conditions", nargs="+", help="position:3, gold_only, best_first, ...")
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--fit", action="store_true", help="questions for fitting")
    parser.add_argument("--results", type=Path, default=RESULTS)
    run(parser.parse_args())


if __name__ == "__main__":
    main()
