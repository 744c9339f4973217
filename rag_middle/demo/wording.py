"""What the figures say, in sentences: nothing is said that they do not carry."""

from __future__ import annotations

from collections.abc import Iterable

from rag_middle.demo.demonstration import Demonstration
from rag_middle.evaluation import Estimate, PositionCurve
from rag_middle.evaluation.measurement import BASELINE
from rag_middle.evaluation.recommendation import Verdict

__all__ = ["findings", "how_measured", "in_percent", "with_interval"]


def findings(shown: Demonstration) -> tuple[str, ...]:
    """What was found: the unmodified model by place, each method beside it, orders."""
    return (_unmodified(shown), *_methods(shown), _orders(shown))


def how_measured(shown: Demonstration) -> tuple[str, ...]:
    """How the figures came about."""
    left_out = (
        f"{shown.missed} further questions were left out because retrieval did not find their page "
        f"among the best {shown.documents}"
        if shown.missed
        else "no question had to be left out because retrieval had missed its page"
    )
    return (
        f"{shown.curves.questions} questions, each asked with its answering page at "
        f"{len(shown.curves.places)} places among {shown.documents} pages; the same questions at "
        f"every place and under every method. The other pages are those that retrieval ranks "
        f"closest to the question, best first; {left_out}.",
        "An answer is right if it states the page's value as a whole: a name or number inside a "
        "longer one does not count, upper and lower case are alike, other words do not matter. "
        "Pages that state the same value by chance were replaced by the next best.",
        f"Picking at random among the pages of a prompt that state what is asked would be right in "
        f"{in_percent(shown.chance)} of cases.",
        "Bars and intervals at each place are Wilson's for 95 %. Means, gaps and differences have "
        "95 % intervals from 10,000 resamples of the questions, differences paired by question; "
        "where several methods are compared with the unmodified model, their intervals are widened "
        "for it (Bonferroni).",
        *(f"{label} was left out: {reason}" for label, reason in shown.left_out.items()),
    )


def in_percent(share: float) -> str:
    """A share in per cent: ``81 %``; with a decimal below ten."""
    return f"{100 * share:.1f} %" if 0 < share < 0.0995 else f"{100 * share:.0f} %"


def with_interval(each: Estimate, *, signed: bool = False) -> str:
    """A share and its interval in per cent or points: ``81 [72, 88]``."""
    sign = "+" if signed else ""
    value, low, high = (f"{100 * v:{sign}.0f}" for v in (each.value, each.low, each.high))
    return f"{value} [{low}, {high}]".replace("-", "−").replace("+0", "0").replace("−0", "0")


def _unmodified(shown: Demonstration) -> str:
    curve, places = shown.curves[BASELINE], shown.curves.places
    values = [each.value for each in curve.estimates]
    best, worst = max(values), min(values)
    if best == worst:
        return f"Unmodified, {shown.model} is right in {in_percent(best)} of cases at every place."
    text = (
        f"Unmodified, {shown.model} is right in {in_percent(best)} of cases with the answering "
        f"page at {_places(places, values, best)}, and in {in_percent(worst)} at "
        f"{_places(places, values, worst)}."
    )
    if curve.gap.includes_zero:
        return f"{text} Chance explains a difference of that size."
    return f"{text} Chance does not explain that."


def _places(places: Iterable[int], values: Iterable[float], wanted: float) -> str:
    found = [str(at + 1) for at, value in zip(places, values, strict=True) if value == wanted]
    return f"place {found[0]}" if len(found) == 1 else f"places {', '.join(found)}"


def _methods(shown: Demonstration) -> list[str]:
    verdicts = {each.label: each for each in shown.recommendation.verdicts}
    return [
        _method(verdicts.get(curve.label), curve, shown.curves[BASELINE])
        for curve in shown.curves.curves
        if curve.label != BASELINE
    ]


def _method(verdict: Verdict | None, own: PositionCurve, base: PositionCurve) -> str:
    means = f"from {in_percent(base.mean.value)} to {in_percent(own.mean.value)}"
    if verdict is None:
        return f"{own.label} takes the mean {means}; too few questions to say more."
    mean = verdict.mean_difference
    if mean.low > 0:
        text = f"{own.label} raises the mean over the places {means} ({_points(mean)})."
    elif mean.high < 0:
        text = f"{own.label} hurts here: the mean over the places falls {means} ({_points(mean)})."
    else:
        text = (
            f"{own.label} takes the mean over the places {means} ({_points(mean)}), a difference "
            "that chance explains."
        )
    worst = verdict.worst_difference
    text += (
        f" The worst place goes from {in_percent(base.worst.value)} to "
        f"{in_percent(own.worst.value)} ({_points(worst)})"
    )
    text += ", which chance explains." if worst.includes_zero else "."
    apart = f"{100 * own.gap.value:.0f}"
    text += f" Its best and worst place are {apart} point{'' if apart == '1' else 's'} apart"
    return text + (", no more than chance explains." if own.gap.includes_zero else ".")


def _points(each: Estimate) -> str:
    return f"{with_interval(each, signed=True)} points"


def _orders(shown: Demonstration) -> str:
    asked = len(shown.examples)
    orders = len(next(iter(shown.examples)).places)
    same = {
        label: sum(example.answers(label) == 1 for example in shown.examples)
        for label in shown.labels
    }
    told = ", ".join(f"{label} {count}" for label, count in same.items())
    return (
        f"{asked} other questions were asked with the same pages in {orders} orders. Questions "
        f"with the same answer in every order: {told}."
    )
