"""Does a measured order help where a retriever ranks the documents? Paired, on unseen questions.

    rag-middle diagnose --model DIR --documents 10 --out rag-middle-diagnosis
    python benchmarks/measured_order.py --model DIR --profile rag-middle-diagnosis \\
        --output benchmarks/results/measured_order

All 2,000 passages of ``benchmarks/data/natural_questions.jsonl.gz`` are indexed with FAISS; every
question is asked with its nearest passages: in the retriever's order, in the order that the profile
measured, under all of the profile where it has a method too, and under ``--methods``. Questions are
lines 700 to 1,299 by default, none of which `diagnose` asks by default; one that the profile was
measured on is refused. Instead of a profile, ``--records`` takes answers by gold position that
``benchmarks/real_models.py`` recorded. Greedy decoding.

Answers are kept in a file of JSON lines, and a run continues from it.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from reporting import Facts, facts, report
from scipy.stats import binomtest

from rag_middle import RagMiddleModel
from rag_middle.evaluation.conditions import AS_GIVEN, Item, question_digest
from rag_middle.evaluation.statistics import comparison_confidence, paired_difference
from rag_middle.evaluation.tasks import Task
from rag_middle.evaluation.tasks.questions import MultiDocumentQA, OwnQuestions
from rag_middle.methods import MeasuredOrder, Method, resolve_method
from rag_middle.retrieval import Retriever, build_index

DATA = Path(__file__).parent / "data" / "natural_questions.jsonl.gz"
BUILD = Path("build/measured_order")
WHOLE = 100_000  # tokens of a chunk
BASELINE, ORDER, PROFILE = "retriever's order", "measured order", "profile"


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    model = RagMiddleModel.from_pretrained(
        arguments.model, dtype=arguments.dtype, device=arguments.device
    )
    kind = MultiDocumentQA if arguments.task == MultiDocumentQA.name else OwnQuestions
    task = kind(data=DATA, documents=arguments.documents)
    methods = _methods(arguments)
    items, ranks = _items(task, arguments)
    _refuse_measured(task, items, methods)
    identity = {
        "model": model.identity(),
        "task": task.to_dict(),
        "new_tokens": arguments.new_tokens,
        "methods": {label: repr(method) for label, method in methods.items()},
    }
    records = _ask(model, task, items, methods, identity, arguments)
    rows = _rows(records, items, list(methods))
    first = sum(rank == 0 for rank in ranks)
    known = facts(
        arguments.device,
        timed=False,
        packages={name: version(name) for name in ("faiss-cpu", "rag-middle")},
        model=model.identity(),
        weights_sha256=_digest(Path(arguments.model)),
        dtype=arguments.dtype,
        profile=None if arguments.profile is None else str(arguments.profile),
        records=None if arguments.records is None else arguments.records.name,
        methods=identity["methods"],
        data=DATA.name,
        data_sha256=_digest(DATA),
        lines=arguments.lines,
        task=task.name,
        questions=len(items),
        documents=arguments.documents,
        gold_ranked_first=first / len(items),
        gold_found=sum(rank is not None for rank in ranks) / len(items),
        new_tokens=arguments.new_tokens,
        decoding="greedy",
        metric="best_subspan_em",
        intervals="Wilson; of differences paired bootstrap over questions, all together 95 %",
        seed=0,
    )
    report(_table(rows), rows, known, arguments.output)


def _methods(arguments: argparse.Namespace) -> dict[str, Method]:
    methods = {BASELINE: resolve_method("none")}
    if arguments.records is not None:
        methods[ORDER] = MeasuredOrder(accuracy=_recorded(arguments.records, arguments.documents))
    if arguments.profile is not None:
        whole = resolve_method(f"profile:{arguments.profile}")
        orders = [part for part in whole.parts if isinstance(part, MeasuredOrder)]
        if orders:
            methods[ORDER] = orders[0]
        if len(whole.parts) > len(orders) and not whole.is_neutral:
            methods[PROFILE] = whole
    return methods | {name: resolve_method(name) for name in arguments.methods}


def _recorded(path: Path, documents: int) -> tuple[float, ...]:
    """Accuracy by position of the unmodified model, from the records of real_models.py."""
    correct: dict[int, list[bool]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        kind, _, position = record.get("condition", "").partition(":")
        if record.get("method") == "none" and kind == "position":
            correct.setdefault(int(position), []).append(record["correct"])
    positions = sorted(correct)
    accuracy = [float(np.mean(correct[position])) for position in positions]
    return tuple(np.interp(range(documents), positions, accuracy).tolist())


def _items(
    task: OwnQuestions, arguments: argparse.Namespace
) -> tuple[list[Item], list[int | None]]:
    """Questions with their nearest passages, best first, and the gold passage's rank."""
    BUILD.mkdir(parents=True, exist_ok=True)
    passages = BUILD / "passages.jsonl"
    passages.write_bytes(gzip.decompress(DATA.read_bytes()))
    built = build_index(passages, BUILD / "index", chunk_size=WHOLE)
    retriever = Retriever(index=built.index, top_k=arguments.documents)
    start, stop = arguments.lines
    distinct = task.items(stop, 0)
    asked = [item for item in distinct if start <= int(item.id) < stop][: arguments.questions]
    items: list[Item] = []
    ranks: list[int | None] = []
    for item in asked:
        assert item.gold is not None
        found = retriever(item.question)
        ranks.append(next((i for i, d in enumerate(found) if d.text in item.gold.text), None))
        others = tuple(replace(task._shown(each), metadata=each.metadata) for each in found)
        items.append(replace(item, gold=None, others=others))
    return items, ranks


def _refuse_measured(task: Task, items: Sequence[Item], methods: dict[str, Method]) -> None:
    profiles = [part.provenance.profile for m in methods.values() for part in m.parts
                if part.provenance]  # fmt: skip
    measured = {digest for profile in profiles for digest in profile.data.get("searched", ())}
    for item in items:
        if question_digest(task.prompt(item, AS_GIVEN), item.answers) in measured:
            raise SystemExit(f"The profile was measured on {item.question!r}: choose other --lines")


def _ask(
    model: RagMiddleModel,
    task: Task,
    items: Sequence[Item],
    methods: dict[str, Method],
    identity: dict[str, Any],
    arguments: argparse.Namespace,
) -> dict[tuple[str, str], dict[str, Any]]:
    """Records by label and question; those of an earlier run are not asked again."""
    identity = json.loads(json.dumps(identity))
    records: dict[tuple[str, str], dict[str, Any]] = {}
    if arguments.answers.exists():
        header, *lines = map(json.loads, arguments.answers.read_text("utf-8").splitlines())
        if header != identity:
            raise SystemExit(f"{arguments.answers} is of another measurement: give --answers")
        records = {(line["label"], line["question"]): line for line in lines}
    arguments.answers.parent.mkdir(parents=True, exist_ok=True)
    with arguments.answers.open("a", encoding="utf-8") as file:
        if not file.tell():
            print(json.dumps(identity), file=file, flush=True)
        for start in range(0, len(items), arguments.batch_size):
            group = items[start : start + arguments.batch_size]
            for label, method in methods.items():
                new = [item for item in group if (label, item.id) not in records]
                if not new:
                    continue
                started = perf_counter()
                answers = model.batch(
                    [task.prompt(item, AS_GIVEN) for item in new],
                    method=method,
                    max_new_tokens=arguments.new_tokens,
                    max_batch_size=arguments.batch_size,
                )
                seconds = (perf_counter() - started) / len(new)
                for item, answer in zip(new, answers, strict=True):
                    record = {
                        "label": label,
                        "question": item.id,
                        "text": answer.text,
                        "correct": task.scores(item, AS_GIVEN, answer.text)["best_subspan_em"],
                        "prompt_tokens": answer.usage.prompt_tokens,
                        "seconds": seconds,
                    }
                    print(json.dumps(record, ensure_ascii=False), file=file, flush=True)
                    records[label, item.id] = record
            print(f"{len(records)} of {len(items) * len(methods)} answers", flush=True)
    return records


def _rows(
    records: dict[tuple[str, str], dict[str, Any]], items: Sequence[Item], labels: Sequence[str]
) -> list[dict[str, Any]]:
    correct = {
        label: np.array([records[label, item.id]["correct"] for item in items]) for label in labels
    }
    confidence, rows = comparison_confidence(len(labels) - 1), []
    for label, own in correct.items():
        interval = binomtest(int(own.sum()), len(own)).proportion_ci(0.95, "wilson")
        row = {
            "order": label,
            "right": int(own.sum()),
            "accuracy": float(own.mean()),
            "interval": [interval.low, interval.high],
            "seconds": float(np.mean([records[label, item.id]["seconds"] for item in items])),
        }
        if label != BASELINE:
            gain = paired_difference(own, correct[BASELINE], confidence)
            row |= {"difference": gain.value, "difference_interval": [gain.low, gain.high]}
        rows.append(row)
    return rows


def _table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| | right | accuracy, % | difference, points | seconds |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        low, high = row["interval"]
        difference = ""
        if "difference" in row:
            least, most = row["difference_interval"]
            difference = f"{100 * row['difference']:+.1f} [{100 * least:+.1f}, {100 * most:+.1f}]"
        lines.append(
            f"| {row['order']} | {row['right']} | {100 * row['accuracy']:.1f} "
            f"[{100 * low:.1f}, {100 * high:.1f}] | {difference} | {row['seconds']:.1f} |"
        )
    return "\n".join(lines)


def _digest(path: Path) -> Facts | str:
    """SHA-256 of a file, of each file of weights in a folder."""
    if path.is_dir():
        return {file.name: _digest(file) for file in sorted(path.glob("*.safetensors"))}
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="folder, or a .gguf file")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--profile", type=Path, help="folder that `rag-middle diagnose` wrote")
    parser.add_argument("--records", type=Path, help="of real_models.py, in place of a profile")
    parser.add_argument("--methods", nargs="*", default=[], help="further ones to compare")
    parser.add_argument(
        "--task",
        choices=["own_questions", "multi_document_qa"],
        default="own_questions",
        help="whose prompt and score are used: that of `diagnose`, or of real_models.py",
    )
    parser.add_argument("--documents", type=int, default=10)
    parser.add_argument("--lines", type=int, nargs=2, default=[700, 1300], metavar=("FROM", "TO"))
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--new-tokens", type=int, default=24)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--answers", type=Path, default=BUILD / "answers.jsonl")
    parser.add_argument("--output", type=Path, help="results, e.g. benchmarks/results/...")
    return parser.parse_args()


if __name__ == "__main__":
    main()
