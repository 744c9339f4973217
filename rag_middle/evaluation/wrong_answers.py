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
        golds = item.golds or ((item.gold,) if item.gold else ())
        return {
            "question": item.question,
            "answers": list(item.answers),
            "documents": [
                {
                    "title": document.title,
                    "text": shortened(document.text, _MOST_CHARACTERS),
                    "gold": index < len(golds),
                }
                for index, document in enumerate((*golds, *item.others))
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
