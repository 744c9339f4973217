"""A model as judge: which of two answers is better, in both orders."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rag_middle.documents import ContextPrompt, Document
from rag_middle.evaluation.conditions import Condition, arranged_documents
from rag_middle.evaluation.items import Item
from rag_middle.evaluation.tasks.base import Task
from rag_middle.evaluation.tasks.reading import field, lines_of

__all__ = ["PairwiseJudge"]

_INSTRUCTION = (
    "Two assistants, A and B, answered the question of a user. Judge which answer is better: "
    "more helpful, more correct, more to the point. Length and order say nothing. Reply with one "
    "letter, A or B.\n\n"
)
_VERDICT = re.compile(r"(?<![A-Za-z'])([AB])(?![A-Za-z'])")


@dataclass(frozen=True, kw_only=True)
class PairwiseJudge(Task):
    """Pairs of answers, one of them known to be better.

    The two answers are the documents, so methods may treat their order as meaningless; the gold
    document is the better one, and its two places are the two orders. The letter of an answer is
    drawn once and stays with it, so between the orders nothing but the place changes (a judge's
    liking for a letter is not mistaken for a liking for a place). The flip rate is the share of
    inconsistent judgements.

    Attributes:
        data: JSON lines with ``prompt``, ``chosen`` and ``rejected`` (RewardBench's format).
    """

    name: ClassVar[str] = "pairwise_judge"
    version: ClassVar[int] = 1
    title: ClassVar[str] = "Pairwise judging"
    metrics: ClassVar[tuple[str, ...]] = ("judged_right",)
    max_new_tokens: ClassVar[int] = 8
    controls: ClassVar[tuple[Condition, ...]] = ()

    data: str | Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", Path(self.data))

    @property
    def provenance(self) -> str:
        return f"{Path(self.data).name}, pairs in RewardBench's format"

    @property
    def places(self) -> int:
        return 2

    def items(self, limit: int | None, seed: int) -> list[Item]:
        items = []
        for index, (place, content) in enumerate(list(lines_of(self.data))[:limit]):
            right, wrong = random.Random(f"{self.name} {seed} {index}").sample("AB", 2)
            items.append(
                Item(
                    id=f"{index}",
                    question=field(content, "prompt", str, place),
                    answers=(right,),
                    gold=_answer(right, field(content, "chosen", str, place)),
                    others=(_answer(wrong, field(content, "rejected", str, place)),),
                )
            )
        return items

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        return ContextPrompt(
            f"{_INSTRUCTION}Question of the user:\n{item.question}\n\n",
            arranged_documents(item, condition),
            "The better answer is:",
        )

    def scores(self, item: Item, condition: Condition, answer: str) -> dict[str, float]:
        said = _VERDICT.search(answer)
        return {"judged_right": float(said is not None and said.group(1) in item.answers)}


def _answer(letter: str, text: str) -> Document:
    return Document(f"Answer of assistant {letter}:\n{text}", id=letter)
