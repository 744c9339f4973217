"""Long contexts without known gold places: LongBench's question answering, LooGLE's timelines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rag_middle.documents import ContextPrompt, Document
from rag_middle.errors import EvaluationDataError
from rag_middle.evaluation.conditions import CLOSED_BOOK, Condition, arranged_documents
from rag_middle.evaluation.items import Item
from rag_middle.evaluation.tasks.base import Task
from rag_middle.evaluation.tasks.reading import as_answers, field, lines_of

__all__ = ["LongContextQA", "TimelineOrder"]

_PASSAGE = re.compile(r"(?m)^Passage \d+:\n")


@dataclass(frozen=True, kw_only=True)
class LongContextQA(Task):
    """Questions over a long context, scored by F1.

    A context in numbered passages, as LongBench's multi-document sets have it ("Passage 3:"), is
    taken apart into documents without their numbers; any other context is one document.

    Attributes:
        data: JSON lines in LongBench's format: ``context``, ``input`` (the question), ``answers``.
        instruction: before the context.
        dataset: take only lines with this ``dataset``; None for all.
    """

    name: ClassVar[str] = "long_context_qa"
    version: ClassVar[int] = 1
    title: ClassVar[str] = "Question answering over long contexts"
    metrics: ClassVar[tuple[str, ...]] = ("f1", "best_subspan_em")
    max_new_tokens: ClassVar[int] = 32
    controls: ClassVar[tuple[Condition, ...]] = (CLOSED_BOOK,)

    data: str | Path
    instruction: str = (
        "Answer the question based on the given passages. Only give the answer, and no other "
        "words.\n\n"
    )
    dataset: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", Path(self.data))

    @property
    def provenance(self) -> str:
        return f"{Path(self.data).name}, in the format of LongBench"

    @property
    def places(self) -> int:
        return 0

    def items(self, limit: int | None, seed: int) -> list[Item]:
        lines = [
            (place, content)
            for place, content in lines_of(self.data)
            if self.dataset is None or content.get("dataset") == self.dataset
        ][:limit]
        return [
            Item(
                id=f"{index}",
                question=field(content, "input", str, place),
                answers=as_answers(content.get("answers"), place),
                others=_documents(field(content, "context", str, place)),
            )
            for index, (place, content) in enumerate(lines)
        ]

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        return ContextPrompt(
            self.instruction,
            arranged_documents(item, condition),
            f"Question: {item.question}\nAnswer:",
        )


def _documents(context: str) -> tuple[Document, ...]:
    before, *passages = _PASSAGE.split(context)
    texts = [before, *passages] if before.strip() else passages
    return tuple(Document(text.strip()) for text in texts)


@dataclass(frozen=True, kw_only=True)
class TimelineOrder(Task):
    """Put numbered events of a long text into the order of time.

    Scored by the share of places that are right: 1 for the whole order, 0 where the answer is no
    order of the same events.

    Attributes:
        data: JSON lines with ``context``, ``question`` and ``answer``, numbers separated by commas
            (LooGLE's long-dependency questions); with ``task`` in a line, only those whose task
            names a timeline are taken.
    """

    name: ClassVar[str] = "timeline_order"
    version: ClassVar[int] = 1
    title: ClassVar[str] = "Timeline reordering"
    metrics: ClassVar[tuple[str, ...]] = ("order_accuracy",)
    max_new_tokens: ClassVar[int] = 32
    controls: ClassVar[tuple[Condition, ...]] = (CLOSED_BOOK,)

    data: str | Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", Path(self.data))

    @property
    def provenance(self) -> str:
        return f"{Path(self.data).name}, in the format of LooGLE"

    @property
    def places(self) -> int:
        return 0

    def items(self, limit: int | None, seed: int) -> list[Item]:
        lines = [
            (place, content)
            for place, content in lines_of(self.data)
            if "timeline" in str(content.get("task", "timeline")).lower()
        ][:limit]
        return [_timeline(index, *line) for index, line in enumerate(lines)]

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        return ContextPrompt(
            "Read the text, then put the events into the order of time.\n\n",
            arranged_documents(item, condition),
            f"{item.question}\nReply with the numbers of the events in their order, separated by "
            "commas.\nOrder:",
        )

    def scores(self, item: Item, condition: Condition, answer: str) -> dict[str, float]:
        wanted = [int(number) for number in re.findall(r"\d+", item.answers[0])]
        said = [int(number) for number in re.findall(r"\d+", answer)][: len(wanted)]
        right = sum(a == b for a, b in zip(said, wanted, strict=False))
        is_order = sorted(said) == sorted(wanted)
        return {"order_accuracy": right / len(wanted) if is_order else 0.0}


def _timeline(index: int, place: str, content: dict[str, Any]) -> Item:
    answer = field(content, "answer", str, place)
    if len(re.findall(r"\d+", answer)) < 2:
        raise EvaluationDataError(
            f"{place}: 'answer' should be numbers of events in order, such as '2, 1, 3'; got "
            f"{answer!r}."
        )
    return Item(
        id=f"{index}",
        question=field(content, "question", str, place),
        answers=(answer,),
        others=(Document(field(content, "context", str, place)),),
    )
