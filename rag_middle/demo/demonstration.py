"""What the demonstration has shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from rag_middle.demo.examples import Example
from rag_middle.demo.intervals import wilson
from rag_middle.demo.questions import CITED
from rag_middle.evaluation import (
    PositionCurves,
    Recommendation,
    Results,
    Shape,
    Summary,
    recommend,
    summarised,
)
from rag_middle.evaluation.conditions import position
from rag_middle.evaluation.measurement import BASELINE
from rag_middle.evaluation.shape import shape_of
from rag_middle.evaluation.statistics import Resampled

__all__ = ["Demonstration"]


@dataclass(frozen=True, kw_only=True)
class Demonstration:
    """What was shown.

    Attributes:
        made: when, ISO 8601, UTC.
        model: its name as it was given, or "the bundled reader".
        dtype: of its weights.
        software: versions and device.
        threads: that computed.
        pages: in the index.
        documents: in a prompt.
        missed: questions that were left out because retrieval did not find their page.
        chance: share of right answers of a reader that picks at random among the pages in the
            prompt that state what is asked.
        examples: questions in several orders of their documents.
        curves: right answers by the place of the answering page, with Wilson intervals at each
            place; means and gaps with intervals from resampling questions.
        summary: means, paired differences to the unmodified model.
        shape: of the unmodified model's curve.
        recommendation: what to use for this model on these pages, with verdicts on each method.
        cited: share of answers that name the page that answers, by method label.
        left_out: methods that the model cannot take, with the reason.
        seconds: by step.
    """

    made: str
    model: str
    dtype: str
    software: Mapping[str, str]
    threads: int
    pages: int
    documents: int
    missed: int
    chance: float
    examples: tuple[Example, ...]
    curves: PositionCurves
    summary: Summary
    shape: Shape
    recommendation: Recommendation
    cited: Mapping[str, float]
    left_out: Mapping[str, str]
    seconds: Mapping[str, float]

    @classmethod
    def of(cls, results: Results, **facts: Any) -> Demonstration:
        """What the answers to all questions say.

        Args:
            results: of `Demo.measure`.
            facts: the attributes that are not about them.
        """
        columns = [position(at) for at in results.places]
        scores = {each.label: results.scores(each.label, columns) for each in results.methods}
        return cls(
            made=datetime.now(UTC).isoformat(timespec="seconds"),
            dtype=str(results.model["dtype"]),
            documents=results.task.places,
            curves=_with_wilson(results.curves()),
            summary=summarised(results),
            shape=shape_of(Resampled(scores[BASELINE])),
            recommendation=recommend(scores, results.metric),
            cited={label: float(results.scores(label, columns, CITED).mean()) for label in scores},
            **facts,
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """Of the methods, the unmodified model first."""
        return tuple(curve.label for curve in self.curves.curves)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "made": self.made,
            "model": self.model,
            "dtype": self.dtype,
            "software": dict(self.software),
            "threads": self.threads,
            "pages": self.pages,
            "documents": self.documents,
            "missed": self.missed,
            "chance": self.chance,
            "examples": [each.to_dict() for each in self.examples],
            "curves": self.curves.to_dict(),
            "summary": self.summary.to_dict(),
            "shape": self.shape.to_dict(),
            "recommendation": self.recommendation.to_dict(),
            "cited": dict(self.cited),
            "left_out": dict(self.left_out),
            "seconds": dict(self.seconds),
        }


def _with_wilson(curves: PositionCurves) -> PositionCurves:
    asked = curves.questions
    return replace(
        curves,
        curves=tuple(
            replace(
                curve,
                estimates=tuple(
                    wilson(round(each.value * asked), asked) for each in curve.estimates
                ),
            )
            for curve in curves.curves
        ),
    )
