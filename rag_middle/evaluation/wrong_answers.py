"""Wrong answers: questions with their documents, which a report lets people open; missing texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rag_middle.evaluation.conditions import Item, position
from rag_middle.evaluation.records import Record
from rag_middle.evaluation.results import Results
from rag_middle.wording import counted, shortened

MOST_QUESTIONS = 20
_MOST_CHARACTERS = 1500  # of a document


def wrong_answers(results: Results) -> list[dict[str, Any]]:
    """The `MOST_QUESTIONS` questions of a run with the most wrong answers, as plain data.

    Each has ``question``, ``answers``, ``documents`` (the gold ones first), ``conditions`` (as
    headings), ``replies`` (by method label, one per condition: ``text``, and whether it is
    ``right`` by the main score; of an F1 score, at least one half), and how many are ``wrong``.
    """
    conditions = [position(index) for index in results.positions]
    names = [f"at {index}" for index in results.positions]
    if not conditions:
        conditions = list(results.measurement.conditions(results.task))
        names = [condition.name.replace("_", " ").replace(":", " ") for condition in conditions]
    score = results.metric.name if results.metric.share else "greedy_match"

    def asked(item: Item) -> dict[str, Any]:
        records = {
            method.label: [results.records[method.label, c.name, item.id] for c in conditions]
            for method in results.methods
        }
        replies = {
            label: [{"text": _shown(r), "right": r.scores[score] >= 0.5} for r in own]
            for label, own in records.items()
        }
        return {
            "question": item.question,
            "answers": list(item.answers),
            "documents": [
                {
                    "title": document.title,
                    "text": shortened(document.text, _MOST_CHARACTERS),
                    "gold": index < len(item.gold_documents),
                }
                for index, document in enumerate((*item.gold_documents, *item.others))
            ],
            "conditions": names,
            "replies": replies,
            "wrong": sum(not reply["right"] for own in replies.values() for reply in own),
        }

    wrong = [question for question in map(asked, results.items) if question["wrong"]]
    return sorted(wrong, key=lambda question: -question["wrong"])[:MOST_QUESTIONS]


def _shown(record: Record) -> str | None:
    if record.answer is None:
        return None
    if record.withheld:
        return f"{record.answer} (withheld)"
    return f"{record.answer or '(nothing)'}{' (cut within thinking)' if record.unfinished else ''}"


def missing_answers(results: Results) -> tuple[str, ...]:
    """How many answers are missing, in a sentence for each reason.

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
    notes = []
    for text, is_missing in kinds.items():
        counts = []
        for method in results.methods:
            records = [r for r in results.records.values() if r.method == method.label]
            if missing := sum(map(is_missing, records)):
                counts.append(
                    f"{missing} of {counted(len(records), 'answer')} under {method.label}"
                )
        if counts:
            notes.append(f"{text.format(', '.join(counts))} They count as wrong.")
    return tuple(notes)
