"""How a verification went: per case, per method, as a whole."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

Status = Literal["passed", "failed", "skipped", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """One golden case.

    Attributes:
        id: the case.
        method: the method's name here; for a method that does not exist here, as in the file.
        status: ``"unknown"`` where there is no such method, which counts as a failure.
        difference: largest absolute difference of a logit (of a statistic, for a search); None
            where nothing was compared. NaN where an output was NaN.
        reason: why it was not passed; empty otherwise.
    """

    id: str
    method: str
    status: Status
    difference: float | None = None
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "difference": _finite(self.difference)}


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodResults:
    """All cases of one method."""

    method: str
    results: tuple[CaseResult, ...]

    def count(self, status: Status) -> int:
        """Number of cases with this status."""
        return sum(result.status == status for result in self.results)

    @property
    def status(self) -> Status:
        """That of the worst case; skipped only where every case was."""
        statuses: tuple[Status, ...] = ("unknown", "failed", "passed", "skipped")
        return next(status for status in statuses if self.count(status))

    @property
    def difference(self) -> float | None:
        """Largest absolute difference of the cases compared; NaN where there was one."""
        differences = [r.difference for r in self.results if r.difference is not None]
        return max(differences, key=lambda d: (math.isnan(d), d), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "method": self.method,
            "status": self.status,
            "cases": len(self.results),
            **{status: self.count(status) for status in get_args(Status)},
            "difference": _finite(self.difference),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationReport:
    """The outcome of :func:`rag_middle.verify.verify`.

    Attributes:
        results: one per case, in the order of the file.
        tolerance: largest absolute difference that passes.
        attn_implementation: the attention that the models ran with where they have it.
        versions: of the packages that decide the numbers.
    """

    results: tuple[CaseResult, ...]
    tolerance: float
    attn_implementation: str
    versions: Mapping[str, str]

    @property
    def passed(self) -> bool:
        """True where something was compared and nothing failed or was unknown."""
        statuses = {result.status for result in self.results}
        return "passed" in statuses and not statuses & {"failed", "unknown"}

    @property
    def methods(self) -> tuple[MethodResults, ...]:
        """Results by method, in order of appearance."""
        names = dict.fromkeys(result.method for result in self.results)
        return tuple(
            MethodResults(method=name, results=tuple(r for r in self.results if r.method == name))
            for name in names
        )

    @property
    def failures(self) -> tuple[CaseResult, ...]:
        """Cases that failed, and those of methods that do not exist here."""
        return tuple(r for r in self.results if r.status in ("failed", "unknown"))

    @property
    def skipped(self) -> tuple[CaseResult, ...]:
        """Cases that were left out, with the reason."""
        return tuple(r for r in self.results if r.status == "skipped")

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; a NaN difference is the string ``"nan"``."""
        return {
            "passed": self.passed,
            "tolerance": self.tolerance,
            "attn_implementation": self.attn_implementation,
            "versions": dict(self.versions),
            "methods": [summary.to_dict() for summary in self.methods],
            "failures": [result.to_dict() for result in self.failures],
            "skipped": [result.to_dict() for result in self.skipped],
        }


def _finite(difference: float | None) -> float | str | None:
    """JSON has no NaN and no infinity."""
    if difference is None or math.isfinite(difference):
        return difference
    return str(difference)
