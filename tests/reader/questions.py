"""Questions about invented people, towns and companies, which the reader can answer."""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rag_middle.documents import ContextPrompt, Document
from rag_middle.evaluation.conditions import Condition, Item, position
from rag_middle.evaluation.tasks.base import Task, question_prompt, require_whole
from tests.reader.world import draw_entries

__all__ = ["InventedDocuments", "reader_question", "write_lines", "write_questions"]


@dataclass(frozen=True, kw_only=True)
class InventedDocuments(Task):
    """Generated documents, one of which answers the question.

    All state the same attribute of different things, and only the name tells which one answers.

    Attributes:
        documents: in a prompt.
        facts: sentences of a document.
        cited: measure the log-likelihood of the answer as the reader gives it, after the name of
            its document.
    """

    name: ClassVar[str] = "invented_documents"
    version: ClassVar[int] = 4
    title: ClassVar[str] = "Questions about invented documents"
    # The strict score first: answers are names and numbers, and "12 days" is not "2 days".
    metrics: ClassVar[tuple[str, ...]] = ("answer_stated", "best_subspan_em", "f1")
    max_new_tokens: ClassVar[int] = 24

    documents: int = 10
    facts: int = 1
    cited: bool = False

    def __post_init__(self) -> None:
        require_whole(self.name, 2, documents=self.documents)

    @property
    def provenance(self) -> str:
        return "generated; nothing in it exists"

    @property
    def num_positions(self) -> int:
        return self.documents

    def items(self, limit: int | None, seed: int) -> list[Item]:
        assert limit is not None
        draws = (random.Random(f"{self.name} {seed} {index}") for index in range(limit))
        return [self._item(*each) for each in enumerate(draws)]

    def _item(self, index: int, rng: random.Random) -> Item:
        entries = draw_entries(rng, self.documents, self.facts)
        # Several may be shared where documents state several facts; any of them will do.
        shared = set.intersection(*({f.attribute.key for f in entry.facts} for entry in entries))
        fact = next(f for f in entries[0].facts if f.attribute.key in shared)
        gold, *others = [Document(entry.text, id=entry.title) for entry in entries]
        return Item(
            id=f"{index}",
            question=fact.question(rng),
            answers=(fact.value,),
            gold=gold,
            others=tuple(others),
            details={"cited_answer": fact.answer},
        )

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        return question_prompt("", item, condition)

    def target(self, item: Item, condition: Condition) -> str:
        return str(item.details["cited_answer"]) if self.cited else item.answers[0]


def reader_question(number: int = 0) -> tuple[ContextPrompt, str]:
    """A prompt with the gold document fourth among six, and the value that answers."""
    task = InventedDocuments(documents=6)
    item = task.items(number + 1, 0)[number]
    return task.prompt(item, position(3)), item.answers[0]


def write_questions(path: Path, count: int = 120) -> Path:
    """A file of questions with their gold documents, for `OwnQuestions`."""
    items = InventedDocuments(documents=2).items(count, 0)
    lines = [
        {
            "question": item.question,
            "answers": list(item.answers),
            "text": item.gold and item.gold.text,
            "nearest": [(line + step) % count for step in range(1, 31)],
        }
        for line, item in enumerate(items)
    ]
    return write_lines(path, *lines)


def write_lines(path: Path, *lines: Mapping[str, Any]) -> Path:
    """A file with a JSON object on each line."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path
