"""Wrong answers: questions with their documents, which a report lets people open; missing texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rag_middle.documents import Document
from rag_middle.evaluation.conditions import position
from rag_middle.evaluation.records import Record
from rag_middle.evaluation.results import Results
from rag_middle.wording import counted, shortened

MOST_QUESTIONS = 20
_MOST_CHARACTERS = 1500  # of a document


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer.

    Attributes:
        text: as it is shown; None where only its log-likelihood was measured.
        right: by the main score; of an F1 score, at least one half.
    """

    text: str | None
    right: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedQuestion:
    """A question with what was answered.

    Attributes:
        question: as the model reads it.
        answers: that count as right.
        documents: the gold ones first; the text of a long one is cut.
        golds: how many of them are gold.
        conditions: under which it was asked, as headings: positions of the gold document.
        replies: by method label, one per condition.
    """

    question: str
    answers: tuple[str, ...]
    documents: tuple[Document, ...]
    golds: int
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

    def reply(record: Record) -> Reply:
        return Reply(text=_shown(record), right=record.scores[score] >= 0.5)

    return most_wrong(
        [
            AskedQuestion(
                question=item.question,
                answers=item.answers,
                documents=shown_documents((*(item.golds or (item.gold,)), *item.others)),
                golds=len(item.golds) or int(item.gold is not None),
                conditions=tuple(names),
                replies={
                    method.label: tuple(
                        reply(results.records[method.label, condition.name, item.id])
                        for condition in conditions
                    )
                    for method in results.methods
                },
            )
            for item in results.items
        ]
    )


def _shown(record: Record) -> str | None:
    if record.answer is None:
        return None
    if record.withheld:
        return f"{record.answer} (withheld)"
    return f"{record.answer or '(nothing)'}{' (cut within thinking)' if record.unfinished else ''}"


def missing_answers(results: Results) -> tuple[str, ...]:
    """How many questions and answers are missing, in a sentence each.

    Missing answers count as wrong: differences are paired over questions, so none can be left out
    under one method or at one position alone.
    """
    kinds: dict[str, Callable[[Record], bool]] = {
        "The server's content filter withheld answers, whole or in part: {}. Ask without it, or "
        "leave out their questions.": lambda record: record.withheld,
        "Answers were cut within the model's thinking: {}. Allow more (`--max-new-tokens`), or "
        "turn thinking off, at an endpoint on its server.": lambda record: record.unfinished,
        "The model answered nothing: {}. Is there room to think (`--max-new-tokens`), and does the "
        "prompt suit the model (`--template`)?": lambda record: (
            record.said == "" and not (record.withheld or record.unfinished)
        ),
    }
    counts = {text: _by_method(results, counted_as) for text, counted_as in kinds.items()}
    return (
        *([repeated_note(results.repeated)] if results.repeated else []),
        *(f"{text.format(count)} They count as wrong." for text, count in counts.items() if count),
    )


def repeated_note(repeated: int) -> str:
    """That questions of the data are asked once."""
    return (
        f"Left out: {counted(repeated, 'question')} that the data had before, with the same "
        "answers and gold document. A repeated question tells nothing new and counts once."
    )


def _by_method(results: Results, counts: Callable[[Record], bool]) -> str:
    """How many answers of each method count, controls included; empty where none does."""
    parts = []
    for method in results.methods:
        records = [record for key, record in results.records.items() if key[0] == method.label]
        if number := sum(map(counts, records)):
            parts.append(f"{number} of {counted(len(records), 'answer')} under {method.label}")
    return ", ".join(parts)


def most_wrong(asked: Sequence[AskedQuestion]) -> tuple[AskedQuestion, ...]:
    """Those with the most wrong answers first, in their order where they tie."""
    wrong = sorted((question for question in asked if question.wrong), key=lambda q: -q.wrong)
    return tuple(wrong[:MOST_QUESTIONS])


def shown_documents(documents: Iterable[Document | None]) -> tuple[Document, ...]:
    """Documents for a page; long texts are cut."""
    return tuple(
        replace(document, text=shortened(document.text, _MOST_CHARACTERS))
        for document in documents
        if document is not None
    )
