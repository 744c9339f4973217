"""What is told of any run: figures, notes on them, and the questions with wrong answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from datetime import UTC, datetime
from typing import Any

from rag_middle.evaluation.conditions import Item, position, question_digest
from rag_middle.evaluation.records import Record
from rag_middle.evaluation.results import Grid, PositionCurves, Results, Summary, grid_of
from rag_middle.wording import counted, shortened

_MOST_QUESTIONS = 20
_MOST_CHARACTERS = 1500  # of a document


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a report shows of a run.

    Attributes:
        results: the answers.
        made: when, ISO 8601, UTC.
        curves: over gold positions; None without one gold document.
        summary: means, differences, flip rates, controls.
        grid: rows and columns, where the measurement or the task has them.
        notes: what bears on the figures.
        wrong: questions with the most wrong answers, with their documents.
    """

    results: Results
    made: str
    curves: PositionCurves | None
    summary: Summary
    grid: Grid | None
    notes: tuple[str, ...]
    wrong: Sequence[Mapping[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            **self.results.to_dict(),
            **{n: _plain(v) for n, v in own.items() if n != "results"},
        }


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def findings(results: Results) -> Findings:
    """The figures of a run with their intervals, and what bears on them."""
    return Findings(
        results=results,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        curves=results.curves() if results.positions else None,
        summary=results.summary(),
        grid=grid_of(results),
        notes=(*missing_answers(results), *searched_notes(results)),
        wrong=wrong_answers(results),
    )


def wrong_answers(results: Results) -> list[dict[str, Any]]:
    """The questions of a run with the most wrong answers, at most twenty, as plain data.

    Each has ``question``, ``answers``, ``documents`` (the gold ones first), ``conditions`` (as
    headings), ``replies`` (by method label, one per condition: ``text``, and whether it is
    ``right`` by the main score; of an F1 score, at least one half), and how many are ``wrong``.
    """
    conditions = [position(index) for index in results.positions]
    conditions = conditions or list(results.measurement.conditions(results.task))
    score = results.metric.name if results.metric.share else "greedy_match"

    def shown(item: Item) -> dict[str, Any]:
        replies: dict[str, list[dict[str, Any]]] = {method.label: [] for method in results.methods}
        for label, own in replies.items():
            records = [results.records[label, condition.name, item.id] for condition in conditions]
            own += [{"text": _told(r), "right": r.scores[score] >= 0.5} for r in records]
        golds = item.gold_documents
        return {
            "question": item.question,
            "answers": list(item.answers),
            "documents": [
                {"title": d.title, "text": shortened(d.text, _MOST_CHARACTERS), "gold": d in golds}
                for d in (*golds, *item.others)
            ],
            "conditions": [condition.title for condition in conditions],
            "replies": replies,
            "wrong": sum(not reply["right"] for own in replies.values() for reply in own),
        }

    wrong = [question for question in map(shown, results.items) if question["wrong"]]
    return sorted(wrong, key=lambda question: -question["wrong"])[:_MOST_QUESTIONS]


def _told(record: Record) -> str | None:
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
    counts: Counter[tuple[str, str]] = Counter()
    for record in results.records.values():
        if record.withheld:
            reason = (
                "withheld by the server's content filter, whole or in part. Ask without it, or "
            )
            reason += "leave out their questions."
        elif record.unfinished:
            reason = "cut within the model's thinking. Allow more (`--max-new-tokens`), or turn "
            reason += "thinking off, at an endpoint on its server."
        elif record.said == "":
            reason = "empty. Is there room to think (`--max-new-tokens`), and does the prompt suit "
            reason += "the model (`--template`)?"
        else:
            continue
        counts[reason, record.method] += 1
    asked = Counter(record.method for record in results.records.values())
    return tuple(
        f"{count} of {counted(asked[label], 'answer')} under {label}, which count as wrong, are "
        f"{reason}"
        for (reason, label), count in counts.items()
    )


def searched_notes(results: Results) -> tuple[str, ...]:
    """Which methods have parameters that were fitted to questions asked here."""
    asked, texts = question_digests(results), []
    for labelled in results.methods:
        profiles = [part.provenance.profile for part in labelled.method.parts if part.provenance]
        searched = {digest for each in profiles for digest in each.data.get("searched") or ()}
        if shared := sum(digest in searched for digest in asked):
            texts.append(
                f"Parameters of {labelled.label} were fitted to {shared} of these "
                f"{counted(len(asked), 'question')}: its scores on them may be too high. Its "
                "profile has those on held-out questions; or ask others (other --data, or another "
                "--seed for drawn questions)."
            )
    return tuple(texts)


def question_digests(results: Results) -> list[str]:
    """Of the questions, as `question_digest` has them."""
    task = results.task
    any_condition = results.measurement.conditions(task)[0]
    return [question_digest(task.prompt(i, any_condition), i.answers) for i in results.items]
