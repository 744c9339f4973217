"""Does a method help a pretrained model? Answers and likelihoods by position, kept and resumed.

    python benchmarks/real_models.py run --model smollm2 --weights DIR --documents 10 \\
        --methods none pine rotor --limit 100
    python benchmarks/real_models_table.py

`run` appends one JSON line per answer to ``benchmarks/results/real_models/`` and continues where it
stopped; question by question, so that every method has been asked the same ones. The second command
computes the tables of ``docs/does_it_help.md`` from the records.

Questions are lines 700 to 1,299 of ``benchmarks/data/natural_questions.jsonl.gz`` (fitting: lines
1,300 on, ``--fit``), distractors the passages most like the question that hold no answer. The
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
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from transformers import DynamicCache

from rag_middle import ContextPrompt, Document, RagMiddleModel
from rag_middle.attention import applied
from rag_middle.evaluation.conditions import CLOSED_BOOK, GOLD_ONLY, Condition, Item, position
from rag_middle.evaluation.metrics import best_subspan_em
from rag_middle.evaluation.tasks import Task
from rag_middle.evaluation.tasks.key_value import KeyValueRetrieval
from rag_middle.evaluation.tasks.questions import MultiDocumentQA
from rag_middle.methods import (
    Method,
    method_name,
    resolve_method,
)

DATA = Path(__file__).parent / "data" / "natural_questions.jsonl.gz"
RESULTS = Path(__file__).parent / "results" / "real_models"
REPORTED, FITTED = slice(700, 1300), slice(1300, 2000)
NEW_TOKENS = 24
CONTROLS = ("gold_only", "closed_book")  # asked under the first method only, after the rest

#: Label -> method with parameters, of what is not simply a method at its defaults.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "ms_poe 1.0-1.2": ("ms_poe", {"min_ratio": 1.0, "max_ratio": 1.2}),
    **{f"position_interpolation {s}": ("position_interpolation", {"scale": s})
       for s in (0.9, 1.05, 1.1, 1.2, 1.5)},
    **{f"zero_tuning {f}": ("zero_tuning", {"factor": f}) for f in (0.7, 1.5, 2.0)},
    **{f"lpes linear {a}-{b}": ("lpes", {"factors": [a, b]}) for a, b in ((1.0, 1.1), (1.1, 1.0))},
    "moice uniform": ("moice", {"routers": "uniform"}),
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
    def path(self) -> Path:
        return RESULTS / f"{self.model}_{self.task}{self.documents}{'_fit' * self.fit}.jsonl"


def method_of(label: str, model: RagMiddleModel) -> Method:
    name, options = VARIANTS.get(label, (label, {}))
    if name == "lpes":  # a straight line over the layers
        first, last = options["factors"]
        layers = model.model.config.num_hidden_layers
        step = (last - first) / (layers - 1)
        options = {"factors": tuple(first + step * layer for layer in range(layers))}
    if name == "dysco":
        from rag_middle.methods.dysco.detection import retrieval_heads

        options = {"heads": retrieval_heads(model)}
    return resolve_method(name, options or None)


def questions(cell: Cell, limit: int) -> tuple[Task, list[Item]]:
    if cell.task == "kv":
        task: Task = KeyValueRetrieval(keys=cell.documents, identifier_characters=8)
        return task, list(task.items(limit, 1 if cell.fit else 0))
    with gzip.open(DATA, "rt", encoding="utf-8") as file:
        lines = list(file)[FITTED if cell.fit else REPORTED]
    build = Path("build/real_models")
    build.mkdir(parents=True, exist_ok=True)
    part = build / f"{cell.path.stem}.{os.getpid()}.jsonl"
    part.write_text("".join(lines[:limit]), encoding="utf-8")
    task = MultiDocumentQA(data=part, corpus=DATA, documents=cell.documents, distractors="hard")
    chosen = build / f"{cell.path.stem}.{limit}.json"  # embedding the passages takes a minute
    if chosen.exists():
        items = [_item(fields) for fields in json.loads(chosen.read_text(encoding="utf-8"))]
    else:
        items = list(task.items(limit, 0))
        chosen.write_text(json.dumps([asdict(item) for item in items]), encoding="utf-8")
    part.unlink()
    return task, items


def _item(fields: dict[str, Any]) -> Item:
    documents = [Document(**document) for document in (fields["gold"], *fields["others"])]
    return Item(
        id=fields["id"],
        question=fields["question"],
        answers=tuple(fields["answers"]),
        gold=documents[0],
        others=tuple(documents[1:]),
    )


class Ranking:
    """Documents of a question in the order of an embedding retriever, the best first."""

    def __init__(self) -> None:
        from rag_middle.retrieval import SentenceTransformerEmbedder

        self._embedder = SentenceTransformerEmbedder()

    def __call__(self, item: Item) -> tuple[Document, ...]:
        vectors = self._embedder.embed([item.question, *(d.render() for d in item.documents)])
        similarity = vectors[1:] @ vectors[0]
        order = similarity.argsort(kind="stable")[::-1]
        return tuple(item.documents[index] for index in order)


def prompts(
    task: Task, item: Item, conditions: Sequence[str], ranking: Ranking | None
) -> Iterator[tuple[str, ContextPrompt]]:
    """The prompt of each condition; positions from the last to the first share most tokens."""
    for name in conditions:
        if name in ("best_first", "best_last"):
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


class Reader:
    """A model that gives an answer and the likelihood of the right one, reading a prompt once."""

    def __init__(self, weights: str, dtype: str) -> None:
        self.model = RagMiddleModel.from_pretrained(weights, dtype=dtype, device="cpu")
        self._once: dict[str, bool] = {}
        self._kept: tuple[list[int], DynamicCache] | None = None
        ends = self.model.model.generation_config.eos_token_id
        self._ends = {ends} if isinstance(ends, int) else set(ends or ())

    def ask(self, label: str, method: Method, prompt: ContextPrompt, answer: str) -> dict[str, Any]:
        if label not in self._once:  # methods that keep more than the KV cache are asked twice
            self._once[label] = not (method.combines or method.rewrites) and self._agrees(
                label, method, prompt, answer
            )
        if self._once[label]:
            return self._read_once(method, prompt, answer)
        start = perf_counter()
        said = self.model.generate(prompt, method=method, max_new_tokens=NEW_TOKENS, stop=["\n"])
        seconds = perf_counter() - start
        score = self.model.score(prompt, answer, method=method)
        return {"text": said.text, "log_likelihood": score.total,
                "prompt_tokens": said.usage.prompt_tokens,
                "first_token_s": said.timings.prefill, "answer_s": seconds}  # fmt: skip

    def _agrees(self, label: str, method: Method, prompt: ContextPrompt, answer: str) -> bool:
        try:
            once = self._read_once(method, prompt, answer)
        except Exception as error:  # a state that does not go back: two readings then
            print(f"{label} is read twice: {error}", flush=True)
            return False
        said = self.model.generate(prompt, method=method, max_new_tokens=NEW_TOKENS, stop=["\n"])
        score = self.model.score(prompt, answer, method=method)
        same = said.text.strip() == once["text"].strip()
        same = same and abs(score.total - once["log_likelihood"]) < 1e-2
        if not same:
            print(f"{label} is read twice: {once} {said.text!r} {score.total}", flush=True)
        return same

    @torch.no_grad()
    def _read_once(self, method: Method, prompt: ContextPrompt, answer: str) -> dict[str, Any]:
        model: Any = self.model.model
        tokens = self.model.encode(prompt, method=method)
        ids, length = list(tokens.input_ids), len(tokens)
        target = list(self.model.token_ids(answer))
        start = perf_counter()
        cache, known = DynamicCache(config=model.config), 0
        if method.is_neutral and self._kept is not None:  # the same beginning is not read again
            kept, cache = self._kept
            while known < min(len(kept), length - 1) and kept[known] == ids[known]:
                known += 1
            if len(kept) > known:
                cache.crop(known - len(kept))
        with applied(model, method, [tokens], prepared=True):
            output = model(input_ids=torch.tensor([ids[known:]]), past_key_values=cache,
                           use_cache=True, logits_to_keep=1)  # fmt: skip
            first = perf_counter() - start
            next_logits = output.logits[0, -1:].float()
            logits = next_logits
            if len(target) > 1:
                copied = deepcopy(cache)  # its own readings too: the answer below goes on from here
                scored = model(input_ids=torch.tensor([target[:-1]]), past_key_values=copied)
                logits = torch.cat([next_logits, scored.logits[0].float()])
            of_target = logits.log_softmax(-1)[range(len(target)), target].sum().item()
            said: list[int] = []
            start = perf_counter()
            while len(said) < NEW_TOKENS:
                token = int(next_logits[-1].argmax())
                if token in self._ends:
                    break
                said.append(token)
                if "\n" in self.model.tokenizer.decode(said).strip():
                    break
                step = model(input_ids=torch.tensor([[token]]), past_key_values=cache)
                next_logits = step.logits[0].float()
        if method.is_neutral:
            if extra := cache.get_seq_length() - length:
                cache.crop(-extra)
            self._kept = ids, cache
        return {"text": self.model.tokenizer.decode(said, skip_special_tokens=True),
                "log_likelihood": of_target, "prompt_tokens": length, "first_token_s": first,
                "read_tokens": length - known,
                "answer_s": first + perf_counter() - start}  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(arguments.threads)
    cell = Cell(arguments.model, arguments.task, arguments.documents, arguments.fit)
    cell.path.parent.mkdir(parents=True, exist_ok=True)
    reader = Reader(arguments.weights, arguments.dtype)
    task, items = questions(cell, arguments.limit)
    done = {}
    if cell.path.exists():
        for line in cell.path.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if "method" in record:
                done[record["method"], record["condition"], record["question"]] = record
    last = cell.documents - 1
    conditions = arguments.conditions or [f"position:{p}" for p in (last, last // 2, 0)]
    needs_ranking = {"best_first", "best_last"} & {*conditions}
    ranking = Ranking() if needs_ranking else None
    methods = {label: method_of(label, reader.model) for label in arguments.methods}
    with cell.path.open("a", encoding="utf-8") as file:
        provenance = {"weights": _digest(arguments.weights), "dtype": arguments.dtype,
                      "threads": arguments.threads, "software": reader.model.software(),
                      "methods": {label: repr(m) for label, m in methods.items()}}  # fmt: skip
        print(json.dumps({"provenance": provenance}), file=file, flush=True)
        for item in items:
            for label, method in methods.items():
                asked = None
                for condition, prompt in prompts(task, item, conditions, ranking):
                    if (label, condition, item.id) in done:
                        asked = done[label, condition, item.id]
                        continue
                    if condition in CONTROLS and label != arguments.methods[0]:
                        continue
                    if method.order_free and asked is not None:
                        answered = {**asked, "repeated": True}
                    else:
                        chat = "" if reader.model.tokenizer.chat_template else " "
                        answered = reader.ask(label, method, prompt, chat + item.answers[0])
                    answered |= {"method": label, "condition": condition, "question": item.id,
                                 "name": method_name(method)}  # fmt: skip
                    said = answered["text"].strip().partition("\n")[0]
                    answered["correct"] = bool(best_subspan_em(said, item.answers))
                    print(json.dumps(answered, ensure_ascii=False), file=file, flush=True)
                    asked = answered
            print(item.id, end=" ", flush=True)


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
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run")
    running.add_argument("--model", required=True, help="name in records: smollm2, qwen05, qwen15")
    running.add_argument("--weights", required=True, help="folder, or a .gguf file")
    running.add_argument("--dtype", default="float32")
    running.add_argument("--task", choices=["nq", "kv"], default="nq")
    running.add_argument("--documents", type=int, default=10)
    running.add_argument("--methods", nargs="+", default=["none"])
    running.add_argument("--conditions", nargs="+", help="position:3, gold_only, best_first, ...")
    running.add_argument("--limit", type=int, default=100)
    running.add_argument("--threads", type=int, default=torch.get_num_threads())
    running.add_argument("--fit", action="store_true", help="questions for fitting")
    running.set_defaults(call=run)
    arguments = parser.parse_args()
    arguments.call(arguments)


if __name__ == "__main__":
    main()
