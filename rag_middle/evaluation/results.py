"""The answers of a run, and what reports show of them: curves, means, controls.

All scores are of the same questions, so all differences are paired; their intervals are those of
`statistics`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np

from rag_middle.errors import ConfigError
from rag_middle.evaluation.conditions import Condition, Item, order, position, question_digest
from rag_middle.evaluation.measurement import BASELINE, LabelledMethod, Measurement
from rag_middle.evaluation.metrics import Metric, as_compared, metric
from rag_middle.evaluation.records import AnswerRecord, Key
from rag_middle.evaluation.statistics import (
    Array,
    Bootstrap,
    Consistency,
    Estimate,
    comparison_confidence,
    consistency,
    paired_difference,
)
from rag_middle.evaluation.tasks import Task
from rag_middle.wording import counted, shortened

_CONTROLS = {"gold_only": "the gold document alone", "closed_book": "no documents"}
_MOST_QUESTIONS = 20  # with wrong answers, in a report
_MOST_CHARACTERS = 1500  # of a document


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scored:
    """Figures of one metric over the same questions.

    Attributes:
        metric: what was scored.
        questions: how many were asked under each condition.
    """

    metric: Metric
    questions: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "metric": self.metric.name}


# -- over positions -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionCurve:
    """A score by the position of the gold document, under one method.

    Attributes:
        label: of the method.
        estimates: mean over questions at each position, with 95 % intervals for each alone.
        mean: over positions.
        worst: at the worst position.
        gap: best minus worst; its interval includes zero where no two positions differ
            significantly.
    """

    label: str
    estimates: tuple[Estimate, ...]
    mean: Estimate
    worst: Estimate
    gap: Estimate


def curve_of(label: str, bootstrap: Bootstrap) -> PositionCurve:
    """The curve of a method from its scores, a column per position."""
    return PositionCurve(
        label=label,
        estimates=bootstrap.estimates(),
        mean=bootstrap.estimate(lambda means: np.mean(means, axis=-1)),
        worst=bootstrap.least(),
        gap=bootstrap.gap(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionCurves(_Scored):
    """Curves of several methods over the same questions and positions.

    Attributes:
        positions: 0-based, of the gold document.
        documents: in a prompt.
        curves: one per method, the unmodified model first.
    """

    positions: tuple[int, ...]
    documents: int
    curves: tuple[PositionCurve, ...]

    def __getitem__(self, label: str) -> PositionCurve:
        """The curve of one method."""
        return next(curve for curve in self.curves if curve.label == label)

    @property
    def labels(self) -> tuple[str, ...]:
        """Of the methods, the unmodified model first."""
        return tuple(curve.label for curve in self.curves)


# -- means ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodSummary:
    """One method on one task.

    Attributes:
        label: of the method.
        method: with its parameters, as Python.
        mean: of the main metric over questions and conditions.
        difference: mean minus that of the unmodified model, paired, with the confidence of
            `comparison_confidence`; None for that model itself.
        consistency: of answers over shuffled orders, or where none were run, over the positions of
            the gold document; None where there is neither.
        applied: share of prompts that the method could act on.
        order_free: the order of documents cannot change its answers, by how it is built
            (`Method.order_free`), so not only in the orders that were asked.
    """

    label: str
    method: str
    mean: Estimate
    difference: Estimate | None
    consistency: Consistency | None
    applied: float
    order_free: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The unmodified model with other documents.

    Attributes:
        name: of the condition.
        mean: of the main metric.
        difference: minus the unmodified model's mean over the conditions, paired, with the
            confidence of `comparison_confidence`.
    """

    name: str
    mean: Estimate
    difference: Estimate

    @property
    def title(self) -> str:
        """What the model was asked with, for people."""
        return _CONTROLS.get(self.name, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary(_Scored):
    """All methods on one task.

    Attributes:
        methods: the unmodified model first.
        controls: those that were run.
    """

    methods: tuple[MethodSummary, ...]
    controls: tuple[Control, ...]

    def __getitem__(self, label: str) -> MethodSummary:
        """The summary of one method."""
        return next(method for method in self.methods if method.label == label)

    def control(self, name: str) -> Control | None:
        """The control of that name, if it was run."""
        return next((control for control in self.controls if control.name == name), None)


# -- a run ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Results:
    """All answers of a run.

    Attributes:
        task: what was asked.
        measurement: how.
        methods: under which methods, the unmodified model first.
        items: the questions, in order.
        records: the answers by method label, condition name and item id; none is missing.
        model: what tells the model from others.
        software: versions and device.
    """

    task: Task
    measurement: Measurement
    methods: tuple[LabelledMethod, ...]
    items: tuple[Item, ...]
    records: Mapping[Key, AnswerRecord]
    model: Mapping[str, Any]
    software: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """What was measured, as plain data for JSON, without the answers."""
        return {
            "task": self.task.to_dict(),
            "title": self.task.title,
            "provenance": self.task.provenance,
            "measurement": asdict(self.measurement),
            "model": self.model,
            "software": self.software,
        }

    @property
    def labels(self) -> tuple[str, ...]:
        """Of the methods, the unmodified model first."""
        return tuple(method.label for method in self.methods)

    @property
    def compared(self) -> int:
        """How many methods were compared with the unmodified model."""
        return len(self.methods) - 1

    @cached_property
    def positions(self) -> tuple[int, ...]:
        """0-based positions of the gold document; none where the task has no gold document."""
        return self.measurement.gold_positions(self.task)

    @property
    def metric(self) -> Metric:
        """The main metric."""
        return metric(self.measurement.metric_names(self.task)[0])

    def scores(
        self,
        label: str,
        conditions: Sequence[Condition] | None = None,
        metric_name: str | None = None,
    ) -> Array:
        """Scores of one method, `[questions, conditions]`.

        Args:
            conditions: the columns; by default the gold positions.
            metric_name: the main metric by default.
        """
        if conditions is None:
            conditions = [position(index) for index in self.positions]
        name = metric_name or self.metric.name
        return np.array(
            [
                [self.records[label, c.name, item.id].scores[name] for c in conditions]
                for item in self.items
            ]
        )

    def curves(self, metric_name: str | None = None) -> PositionCurves:
        """Curves of the main metric, or another, over gold positions, with bootstrap intervals.

        Raises:
            ConfigError: the task has no gold document, so no positions.
        """
        if not self.positions:
            raise ConfigError(
                f"{self.task.name} has no gold document, so there is no curve over its position."
            )
        scored = metric(metric_name) if metric_name else self.metric
        scores = {label: self.scores(label, metric_name=scored.name) for label in self.labels}
        return PositionCurves(
            metric=scored,
            positions=self.positions,
            documents=self.task.num_positions,
            questions=len(self.items),
            curves=tuple(curve_of(label, Bootstrap(own)) for label, own in scores.items()),
        )

    def summary(self) -> Summary:
        """Means, differences from the unmodified model, flips, and controls."""
        conditions = self.measurement.conditions(self.task)
        # Shuffled orders count only where nothing else was run.
        columns = [c for c in conditions if c.kind != "order"] or list(conditions)
        base = self.scores(BASELINE, columns).mean(axis=1)
        confidence = comparison_confidence(self.compared)

        def mean_and_difference(label: str, columns: Sequence[Condition]) -> tuple[Estimate, ...]:
            own = self.scores(label, columns).mean(axis=1)
            mean = Bootstrap(own[:, None]).estimates()[0]
            return mean, paired_difference(own, base, confidence)

        methods = []
        for method in self.methods:
            mean, difference = mean_and_difference(method.label, columns)
            applied = [r.applied for r in self.records.values() if r.method == method.label]
            methods.append(
                MethodSummary(
                    label=method.label,
                    method=repr(method.method),
                    mean=mean,
                    difference=None if method.label == BASELINE else difference,
                    consistency=self._consistency(method.label),
                    applied=sum(applied) / len(applied),
                    order_free=method.method.order_free,
                )
            )
        controls = []
        for condition in self.task.controls if self.measurement.controls else ():
            mean, difference = mean_and_difference(BASELINE, [condition])
            controls.append(Control(name=condition.name, mean=mean, difference=difference))
        return Summary(
            metric=self.metric,
            questions=len(self.items),
            methods=tuple(methods),
            controls=tuple(controls),
        )

    def _consistency(self, label: str) -> Consistency | None:
        """None where documents came in one order only."""
        # Positions of the gold document are orders of the documents, too.
        orders = [*map(order, range(self.measurement.orders))] or [*map(position, self.positions)]

        def said(item: Item, condition: Condition) -> object:
            record = self.records[label, condition.name, item.id]
            # Without a text, only whether the correct answer is the greedy one can be compared.
            if record.said is None:
                return record.scores["greedy_match"]
            return as_compared(record.said)

        if len(orders) < 2:
            return None
        return consistency([[said(item, condition) for condition in orders] for item in self.items])


# -- what a report shows --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a report shows of a run.

    Attributes:
        results: the answers.
        made: when, ISO 8601, UTC.
        curves: over gold positions; None without one gold document.
        summary: means, differences, flip rates, controls.
        notes: what bears on the figures.
        wrong: questions with the most wrong answers, with their documents.
    """

    results: Results
    made: str
    curves: PositionCurves | None
    summary: Summary
    notes: tuple[str, ...]
    wrong: Sequence[Mapping[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        own = {f.name: _plain(getattr(self, f.name)) for f in fields(self) if f.name != "results"}
        return {**self.results.to_dict(), **own}


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
        notes=(*missing_answers(results), *searched_notes(results)),
        wrong=wrong_answers(results),
    )


def wrong_answers(results: Results) -> list[dict[str, Any]]:
    """The questions of a run with the most wrong answers, at most twenty, as plain data.

    Each has ``question``, ``answers``, ``documents`` (the gold one first), ``conditions`` (as
    headings), ``replies`` (by method label, one per condition: ``text``, and whether it is
    ``right`` by the main score; of an F1 score, at least one half), and how many are ``wrong``.
    """
    conditions = [position(index) for index in results.positions]
    conditions = conditions or list(results.measurement.conditions(results.task))
    score = results.metric.name if results.metric.share else "greedy_match"

    def shown(item: Item) -> dict[str, Any]:
        replies = {}
        for label in results.labels:
            records = [results.records[label, condition.name, item.id] for condition in conditions]
            replies[label] = [{"text": r.shown, "right": r.scores[score] >= 0.5} for r in records]
        golds = [item.gold] if item.gold else []
        return {
            "question": item.question,
            "answers": list(item.answers),
            "documents": [
                {"title": d.title, "text": shortened(d.text, _MOST_CHARACTERS), "gold": d in golds}
                for d in [*golds, *item.others]
            ],
            "conditions": [condition.title for condition in conditions],
            "replies": replies,
            "wrong": sum(not reply["right"] for own in replies.values() for reply in own),
        }

    wrong = [question for question in map(shown, results.items) if question["wrong"]]
    return sorted(wrong, key=lambda question: -question["wrong"])[:_MOST_QUESTIONS]


_MISSING = {
    "withheld": "withheld by the server's content filter, whole or in part. Ask without it, or "
    "leave out their questions.",
    "unfinished": "cut within the model's thinking. Allow more (`--max-new-tokens`), or turn "
    "thinking off, at an endpoint on its server.",
    "empty": "empty. Is there room to think (`--max-new-tokens`), and does the prompt suit "
    "the model (`--template`)?",
}


def missing_answers(results: Results) -> tuple[str, ...]:
    """How many answers are missing, in a sentence for each reason.

    Missing answers count as wrong: differences are paired over questions, so none can be left out
    under one method or at one position alone.
    """
    records = results.records.values()
    asked = Counter(record.method for record in records)
    counts = Counter((r.missing, r.method) for r in records if r.missing)
    return tuple(
        f"{count} of {counted(asked[label], 'answer')} under {label}, which count as wrong, are "
        f"{_MISSING[reason]}"
        for (reason, label), count in counts.items()
    )


def searched_notes(results: Results) -> tuple[str, ...]:
    """Which methods have parameters that were fitted to questions asked here."""
    asked, texts = question_digests(results), []
    for labelled in results.methods:
        profiles = [part.provenance.profile for part in labelled.method.parts if part.provenance]
        searched = {digest for profile in profiles for digest in profile.data.get("searched") or ()}
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
