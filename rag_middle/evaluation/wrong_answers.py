"""Questions that were answered wrongly, with their documents: what a report lets people open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rag_middle.documents import Document
from rag_middle.evaluation.conditions import position
from rag_middle.evaluation.results import Results

__all__ = [
    "AskedQuestion",
    "Reply",
    "ShownDocument",
    "most_wrong",
    "shown_documents",
    "wrong_answers",
]

MOST_QUESTIONS = 20
_MOST_CHARACTERS = 1500  # of a document


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer.

    Attributes:
        text: that was generated; None where only its log-likelihood was measured.
        right: by the main score; of an F1 score, at least one half.
    """

    text: str | None
    right: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownDocument:
    """A document of a question; the text of a long one is cut.

    Attributes:
        title: None where it has none.
        text: of the document.
        gold: it holds the answer.
    """

    title: str | None
    text: str
    gold: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedQuestion:
    """A question with what was answered.

    Attributes:
        question: as the model reads it.
        answers: that count as right.
        documents: the gold document first.
        conditions: under which it was asked, as headings: positions of the gold document.
        replies: by method label, one per condition.
    """

    question: str
    answers: tuple[str, ...]
    documents: tuple[ShownDocument, ...]
    conditions: tuple[str, ...]
    replies: Mapping[str, tuple[Reply, ...]]

    @property
    def wrong(self) -> int:
        """How many of its answers are wrong."""
        return sum(not reply.right for replies in self.replies.values() for reply in replies)

    @property
    def total(self) -> int:
        """How many answers it has."""
        return sum(map(len, self.replies.values()))


def wrong_answers(results: Results) -> tuple[AskedQuestion, ...]:
    """The `MOST_QUESTIONS` questions of a run with the most wrong answers."""
    conditions = [position(index) for index in results.positions]
    names = [f"at {index}" for index in results.positions]
    if not conditions:
        conditions = list(results.measurement.conditions(results.task))
        names = [condition.name.replace("_", " ").replace(":", " ") for condition in conditions]
    score = results.metric.name if results.metric.share else "greedy_match"
    asked = []
    for item in results.items:
        replies = {}
        for method in results.methods:
            records = [results.records[method.label, c.name, item.id] for c in conditions]
            replies[method.label] = tuple(
                Reply(text=record.answer, right=record.scores[score] >= 0.5) for record in records
            )
        asked.append(
            AskedQuestion(
                question=item.question,
                answers=item.answers,
                documents=shown_documents(item.golds or item.gold, item.others),
                conditions=tuple(names),
                replies=replies,
            )
        )
    return most_wrong(asked)


def most_wrong(asked: Sequence[AskedQuestion]) -> tuple[AskedQuestion, ...]:
    """Those with the most wrong answers first, in their order where they tie."""
    wrong = sorted((question for question in asked if question.wrong), key=lambda q: -q.wrong)
    return tuple(wrong[:MOST_QUESTIONS])


def shown_documents(
    gold: Document | Sequence[Document] | None, others: Sequence[Document]
) -> tuple[ShownDocument, ...]:
    """Documents for a page, the gold ones first."""
    golds = [gold] if isinstance(gold, Document) else list(gold or ())
    return tuple(
        ShownDocument(
            title=document.title,
            text=document.text
            if len(document.text) <= _MOST_CHARACTERS
            else f"{document.text[:_MOST_CHARACTERS]} […]",
            gold=index < len(golds),
        )
        for index, document in enumerate([*golds, *others])
    )
