"""Score a reader by the position of the answer: ``python -m training.evaluate_reader FOLDER``.

Exact match of title and value together, greedily generated, on names that training never saw.
Every gold position has the same questions. A document picked at random scores one in D.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from rag_middle import RagMiddleModel
from rag_middle.reader.names import Split
from rag_middle.reader.prompts import draw_case, reads_like

BATCH = 32


def accuracy(
    model: RagMiddleModel,
    method: str,
    split: Split,
    documents: int,
    position: int,
    n: int,
    facts_each: Sequence[int] = (1,),
    namesakes: int = 0,
) -> float:
    """Share of questions answered exactly, with the gold document at one place.

    Exact is title and value together and nothing else, generated greedily. All places have the
    same questions: numbers 0 to ``n - 1``.

    Args:
        model: the reader.
        method: its name, preset or profile.
        split: whose names the documents have.
        documents: in a prompt.
        position: 0-based, of the gold document among them.
        n: how many questions, at least 1.
        facts_each: how many facts a document may state.
        namesakes: other titles of a prompt that end in the gold title's last word.

    Returns:
        From 0 to 1; a document picked at random scores one in `documents`.

    Raises:
        UnknownNameError, MethodConfigError: no such method, or none that fits the model.
        UnsupportedArchitectureError: the model cannot take it.
        ContextOverflowError: a prompt and its answer have more tokens than the model holds.
        EvaluationConfigError: more documents or namesakes than there are names for.
    """
    cases = [
        draw_case(seed, split, documents, position, facts_each=facts_each, namesakes=namesakes)
        for seed in range(n)
    ]
    right = 0
    for start in range(0, n, BATCH):
        some = cases[start : start + BATCH]
        results = model.batch([case.prompt for case in some], method=method, max_new_tokens=32)
        right += sum(
            reads_like(case.answer, result.text) for case, result in zip(some, results, strict=True)
        )
    return right / n


def positions_of(documents: int, most: int) -> list[int]:
    """Up to ``most`` gold positions, spread evenly, first and last included (0-based)."""
    count = min(documents, most)
    return sorted({round(i * (documents - 1) / max(1, count - 1)) for i in range(count)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--split", default="test", choices=["validation", "test"])
    parser.add_argument("--documents", type=int, nargs="+", default=[3, 5, 10, 20, 30])
    parser.add_argument("--methods", nargs="+", default=["none", "pine"])
    parser.add_argument("--most-positions", type=int, default=10)
    parser.add_argument("-n", type=int, default=200, help="questions for each position")
    parser.add_argument("--facts", type=int, nargs="+", default=[1], help="facts per document")
    parser.add_argument("--namesakes", type=int, default=0, help="titles ending like the gold's")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    model = RagMiddleModel.from_pretrained(str(arguments.folder), dtype="float32")
    records = []
    for documents in arguments.documents:
        for method in arguments.methods:
            by_position = {
                position: accuracy(
                    model,
                    method,
                    arguments.split,
                    documents,
                    position,
                    arguments.n,
                    arguments.facts,
                    arguments.namesakes,
                )
                for position in positions_of(documents, arguments.most_positions)
            }
            mean = sum(by_position.values()) / len(by_position)
            shown = " ".join(f"{p}:{100 * a:.1f}" for p, a in by_position.items())
            print(f"{documents} documents, {method}: mean {100 * mean:.1f}  {shown}", flush=True)
            records.append(
                {
                    "documents": documents,
                    "method": method,
                    "n": arguments.n,
                    "facts": arguments.facts,
                    "namesakes": arguments.namesakes,
                    "split": arguments.split,
                    "mean": mean,
                    "random_entity": 1 / documents,
                    "by_position": by_position,
                }
            )
            if arguments.json:
                arguments.json.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
