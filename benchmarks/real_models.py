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
from typing import Any

import torch

from rag_middle import ContextPrompt, Document, RagMiddleModel
from rag_middle.errors import RagMiddleError
from rag_middle.evaluation.conditions import CLOSED_BOOK, GOLD_ONLY, Condition, Item, position
from rag_middle.evaluation.metrics import best_subspan_em
from rag_middle.evaluation.tasks import Task
from rag_middle.evaluation.tasks.key_value import KeyValueRetrieval
from rag_middle.evaluation.tasks.questions import MultiDocumentQA
from rag_middle.generation import Generation, Score
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
    # SmolLM2's channel that drifts with position (examples/reproduce/other_models).
    **{f"positional_hidden_states {f}": ("positional_hidden_states", {
        "channels": (100,), "factor": f, "layers": tuple(range(10, 24))}) for f in (0, 0.5)},
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


def prompt_of(task: Task, item: Item, condition: str, ranking: Ranking | None) -> ContextPrompt:
    if condition not in RANKED:
        return task.prompt(item, _condition(condition))
    assert ranking is not None
    ranked, template = ranking(item), task.prompt(item, GOLD_ONLY)
    documents = ranked if condition == "best_first" else ranked[::-1]
    return ContextPrompt(template.prefix, documents, template.suffix)


def _condition(name: str) -> Condition:
    if name.startswith("position:"):
        return position(int(name.partition(":")[2]))
    return {"gold_only": GOLD_ONLY, "closed_book": CLOSED_BOOK}[name]


@dataclass
class Survey:
    """Asks a model, and writes what it answers as lines of a file.

    Attributes:
        path: of the records, to which more are added; those that are there are not asked again.
        batch: prompts that are read at a time.
        generates: whether answers are generated too, or only the right one's likelihood is taken.
    """

    model: RagMiddleModel
    task: Task
    ranking: Ranking | None
    path: Path
    batch: int
    generates: bool = True

    def __post_init__(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        known = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        self._records: dict[tuple[str, str, str], dict[str, Any]] = {}
        for record in map(json.loads, known):
            if "method" in record:
                key = record["method"], record["condition"], record["question"]
                self._records[key] = record

    def write(self, record: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            print(json.dumps(record, ensure_ascii=False), file=file)

    def ask(self, label: str, method: Method, conditions: Sequence[str], items: list[Item]) -> None:
        """Ask the questions under all conditions; an order-free method under one position."""
        positions = [name for name in conditions if name.startswith("position:")]
        for condition in conditions:
            due = [item for item in items if (label, condition, item.id) not in self._records]
            first = positions[0] if condition in positions else condition
            if method.order_free and condition != first:
                for item in due:
                    same = self._records[label, first, item.id]
                    self._keep({**same, "condition": condition, "repeated": True})
            elif due:
                about = {"method": label, "name": method_name(method), "condition": condition}
                answers = self._answers(method, condition, due)
                for item, answer in zip(due, answers, strict=True):
                    record = {**answer, **about, "question": item.id}
                    if "text" in answer:
                        said = answer["text"].strip().partition("\n")[0]
                        record["correct"] = bool(best_subspan_em(said, item.answers))
                    self._keep(record)

    def _keep(self, record: dict[str, Any]) -> None:
        self._records[record["method"], record["condition"], record["question"]] = record
        self.write(record)

    def _answers(
        self, method: Method, condition: str, items: list[Item]
    ) -> Iterator[dict[str, Any]]:
        """An answer to each question, and the log-likelihood of the right one."""
        texts = [prompt_of(self.task, item, condition, self.ranking) for item in items]
        begin = "" if self.model.tokenizer.chat_template else " "
        targets = [begin + item.answers[0] for item in items]
        try:
            said, scores = self._read(method, texts, targets, self.batch)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            said, scores = self._read(method, texts, targets, max(1, self.batch // 8))
        for index, score in enumerate(scores):
            answer: dict[str, Any] = {
                "log_likelihood": score.total,
                "prompt_tokens": score.prompt_tokens,
            }
            if said:
                answer |= {"text": said[index].text, "kernels": said[index].kernels}
                if self.batch == 1:  # else it is the time of all
                    answer["first_token_s"] = said[index].timings.prefill
            yield answer

    def _read(
        self, method: Method, texts: list[ContextPrompt], targets: list[str], batch: int
    ) -> tuple[list[Generation], list[Score]]:
        how: dict[str, Any] = {"method": method, "max_batch_size": batch}
        said = []
        if self.generates:
            said = self.model.batch(texts, max_new_tokens=NEW_TOKENS, stop=["\n"], **how)
        return said, self.model.score_batch(texts, targets, **how)


def run(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(arguments.threads)
    cell = Cell(arguments.model, arguments.task, arguments.documents, arguments.fit)
    model = RagMiddleModel.from_pretrained(
        arguments.weights,
        tokenizer=arguments.tokenizer,
        dtype=arguments.dtype,
        device=arguments.device,
    )
    task, items = questions(cell, arguments.limit)
    last = cell.documents - 1
    conditions = arguments.conditions or [f"position:{p}" for p in (0, last // 2, last)]
    ranking = Ranking(cell.fit) if {*conditions} & {*RANKED} else None
    path = arguments.results / cell.file
    survey = Survey(model, task, ranking, path, arguments.batch, not arguments.likelihoods)
    methods = {}
    for label in arguments.methods:
        try:
            methods[label.partition("=")[0]] = method_of(label, model)
        except RagMiddleError as error:
            print(f"{label} is left out: {error}", flush=True)
    survey.write({"provenance": {
        "weights": _digest(arguments.weights), "dtype": arguments.dtype,
        "threads": arguments.threads, "batch": arguments.batch, "software": model.software(),
        "methods": {label: repr(m) for label, m in methods.items()}}})  # fmt: skip
    of_controls = next(iter(methods), None)
    for start in range(0, len(items), arguments.batch):
        for label, method in [*methods.items()]:
            asked = [c for c in conditions if c not in CONTROLS or label == of_controls]
            try:
                survey.ask(label, method, asked, items[start : start + arguments.batch])
            except (RagMiddleError, RuntimeError) as error:
                print(f"{label} ends: {error}", flush=True)
                del methods[label]
        print(min(start + arguments.batch, len(items)), end=" ", flush=True)


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
    parser.add_argument(
        "--likelihoods", action="store_true", help="of right answers only: generate nothing"
    )
    parser.add_argument("--fit", action="store_true", help="questions for fitting")
    parser.add_argument("--results", type=Path, default=RESULTS)
    run(parser.parse_args())


if __name__ == "__main__":
    main()
