"""A model as judge of two answers, on RewardBench (arXiv:2403.13787), by section."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from rag_middle import ContextPrompt, Document
from rag_middle.evaluation import Condition, Item, arranged_documents, get_field
from rag_middle.evaluation.tasks.base import require_one_of
from rag_middle_reproduce.tasks.file_task import BENCHMARKS, FileTask

#: Subsets of RewardBench's sections.
SECTIONS: Mapping[str, Sequence[str]] = BENCHMARKS["pairwise_judge"]["sections"]


@dataclass(frozen=True, kw_only=True)
class PairwiseJudge(FileTask):
    """A model as judge: which of two answers is better, one of them known to be.

    The two answers are the documents, so methods may treat their order as meaningless; the gold
    document is the better one, and its two positions are the two orders. The letter of an answer is
    drawn once and stays with it, so between the orders nothing but the position changes (a judge's
    liking for a letter is not mistaken for a liking for a position). The flip rate is the share of
    inconsistent judgements.

    Scored as RewardBench does: 1 where the verdict in brackets names the better answer, 0.5 where
    there is none. The prompt is that of PINE's code, spaces around the question included, which
    RewardBench has not; the instruction is a system message, as in both.

    Attributes:
        data: JSON lines with ``prompt``, ``chosen``, ``rejected`` and ``subset``.
        section: ``"chat"``, ``"chat_hard"``, ``"safety"``, or of the reasoning section ``"math"``
            or ``"code"``, which count alike in RewardBench's mean; None for all lines.
        subset: one subset only.
    """

    name: ClassVar[str] = "pairwise_judge"
    title: ClassVar[str] = "Pairwise judging"
    source: ClassVar[str] = "allenai/reward-bench (ODC-BY)"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    max_new_tokens: ClassVar[int] = 500
    by_likelihood: ClassVar[bool] = False
    system: ClassVar[str | None] = BENCHMARKS["pairwise_judge"]["instruction"]

    section: str | None = None
    subset: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.section is not None:
            require_one_of(self.name, [*SECTIONS], section=self.section)

    @property
    def num_positions(self) -> int:
        return 2

    def items(self, limit: int | None, seed: int) -> list[Item]:
        return [self._lettered(item, seed) for item in super().items(limit, seed)]

    def _lettered(self, item: Item, seed: int) -> Item:
        """The question with a letter for each of its answers."""
        right, wrong = random.Random(f"{self.name} {seed} {item.id}").sample("AB", 2)
        better, worse = (
            Document(
                f"\n[The Start of Assistant {letter}'s Answer]\n"
                f"{item.details[name]}\n"
                f"[The End of Assistant {letter}'s Answer]\n",
                id=letter,
            )
            for letter, name in ((right, "chosen"), (wrong, "rejected"))
        )
        return replace(item, answers=(f"[[{right}]]",), gold=better, others=(worse,), details={})

    def read(self, line: str, content: dict[str, Any]) -> Iterator[Item]:
        subset = get_field(content, "subset", str, line)
        if self.section is not None and subset not in SECTIONS[self.section]:
            return
        if self.subset in (None, subset):
            answers = {name: get_field(content, name, str, line) for name in ("chosen", "rejected")}
            question = get_field(content, "prompt", str, line)
            yield Item(id="", question=question, answers=(), details=answers)

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        return ContextPrompt(
            f"[User Question]\n {item.question} \n",
            arranged_documents(item, condition),
            separator="",
        )

    def scores(self, item: Item, condition: Condition, answer: str) -> dict[str, float]:
        # As RewardBench: A where both stand there.
        verdict = next((verdict for verdict in ("[[A]]", "[[B]]") if verdict in answer), None)
        return {"accuracy": 0.5 if verdict is None else float(verdict in item.answers)}
