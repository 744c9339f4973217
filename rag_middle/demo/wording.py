"""What the figures say, in sentences: nothing is said that they do not carry."""

from __future__ import annotations

from dataclasses import replace

from rag_middle.demo.demonstration import Demonstration
from rag_middle.evaluation import Estimate, PositionCurve, Verdict
from rag_middle.evaluation.measurement import BASELINE
from rag_middle.methods.resolve import title_of
from rag_middle.wording import percent

__all__ = ["findings", "how_measured", "in_percent", "in_print"]


def findings(demonstration: Demonstration) -> tuple[str, ...]:
    """What was found: the unmodified model by position, each method beside it, orders."""
    curves = demonstration.curves
    verdicts = {verdict.label: verdict for verdict in demonstration.recommendation.verdicts}
    base = curves[BASELINE]
    methods = (
        _method(verdicts.get(curve.label), curve, base)
        for curve in curves.curves
        if curve.label != BASELINE
    )
    return (_unmodified(demonstration), *methods, _orders(demonstration))


def how_measured(demonstration: Demonstration) -> tuple[str, ...]:
    """How the figures came about."""
    curves, missed = demonstration.curves, demonstration.missed
    left_out = (
        f"{missed} further questions were left out because retrieval did not find their page "
        f"among the best {curves.documents}"
        if missed
        else "no question had to be left out because retrieval had missed its page"
    )
    return (
        f"{curves.questions} questions, each asked with its gold document (the page that answers) "
        f"at {len(curves.positions)} positions among {curves.documents} pages; the same questions "
        f"at every position and under every method. Positions are 0-based. The other pages are "
        f"those that retrieval ranks closest to the question, best first; {left_out}.",
        "An answer is right if it states the page's value as a whole: a name or number inside a "
        "longer one does not count, upper and lower case are alike, other words do not matter. "
        "Pages that state the same value by chance were replaced by the next best.",
        "Picking at random among the pages of a prompt that state what is asked would be right in "
        f"{in_percent(demonstration.chance)} of cases.",
        "Bars and intervals at each position are Wilson's for 95 %. Means, gaps and differences "
        "have 95 % intervals from 10,000 bootstrap resamples of the questions, differences paired "
        "by question; where several methods are compared with the unmodified model, their "
        "intervals are widened for it (Bonferroni). What such an interval separates from zero is "
        "called significant.",
        _chosen_examples(demonstration),
        *(
            f"{title_of(label)} was left out: {reason}"
            for label, reason in demonstration.left_out.items()
        ),
    )


def in_print(label: str) -> str:
    """What a method is called in charts and tables."""
    return "Unmodified" if label == BASELINE else title_of(label)


def in_percent(share: float) -> str:
    """A share in per cent: ``81 %``; with a decimal below ten."""
    return percent(share, _digits(share))


def _digits(share: float) -> int:
    return 1 if 0 < share < 0.0995 else 0


def _unmodified(demonstration: Demonstration) -> str:
    curve, positions = demonstration.curves[BASELINE], demonstration.curves.positions
    model = demonstration.model
    values = [estimate.value for estimate in curve.estimates]
    best, worst = max(values), min(values)
    if best == worst:
        return f"Unmodified, {model} is right in {in_percent(best)} of cases at every position."

    def at(wanted: float) -> str:
        there = [str(p) for p, value in zip(positions, values, strict=True) if value == wanted]
        return f"position{'s' if len(there) > 1 else ''} {', '.join(there)}"

    significance = "not statistically" if curve.gap.includes_zero else "statistically"
    return (
        f"Unmodified, {model} is right in {in_percent(best)} of cases with the gold document at "
        f"{at(best)}, and in {in_percent(worst)} at {at(worst)}: a difference that is "
        f"{significance} significant."
    )


def _method(verdict: Verdict | None, own: PositionCurve, base: PositionCurve) -> str:
    title = title_of(own.label)
    means = f"from {in_percent(base.mean.value)} to {in_percent(own.mean.value)}"
    if verdict is None:
        return f"{title} takes the mean {means}; too few questions to say more."
    mean, worst = verdict.mean_difference, verdict.worst_difference
    change = f"{means} ({_points(base.mean, own.mean, mean)})"
    if mean.low > 0:
        text = f"{title} raises the mean over the positions {change}."
    elif mean.high < 0:
        text = f"{title} hurts here: the mean over the positions falls {change}."
    else:
        text = f"{title} takes the mean over the positions {change}, which is not significant."
    gap = f"{100 * own.gap.value:.0f}"
    apart = (
        f"Its best and worst position are {gap} point{'' if gap == '1' else 's'} apart"
        f"{', which is not significant' if own.gap.includes_zero else ''}."
    )
    if own.gap.exact:
        apart = "Every question that was asked scores the same at every position."
    return (
        f"{text} The worst position goes from {in_percent(base.worst.value)} to "
        f"{in_percent(own.worst.value)} ({_points(base.worst, own.worst, worst)})"
        f"{', which is not significant' if worst.includes_zero else ''}. {apart}"
    )


def _chosen_examples(demonstration: Demonstration) -> str:
    passed_over = demonstration.passed_over
    return (
        "The questions shown with their answers are the first of the corpus that some method "
        f"answers right in at least one order of the pages; {passed_over} before them "
        f"{'was' if passed_over == 1 else 'were'} not."
    )


def _points(base: Estimate, own: Estimate, difference: Estimate) -> str:
    """The difference of two shares as they are shown: readers subtract, too."""
    if difference.exact:
        return "0 points"
    digits = max(_digits(base.value), _digits(own.value))
    before, after = (round(100 * x.value, _digits(x.value)) for x in (base, own))
    value = (after - before) / 100
    shown = replace(
        difference,
        value=value,
        low=min(difference.low, value),
        high=max(difference.high, value),
    )
    return f"{shown.text(share=True, digits=digits, signed=True)} points"


def _orders(demonstration: Demonstration) -> str:
    examples = demonstration.examples
    unchanged = ", ".join(
        f"{in_print(label)} {sum(example.different_answers(label) == 1 for example in examples)}"
        for label in demonstration.curves.labels
    )
    return (
        f"{len(examples)} other questions were asked with the same pages in "
        f"{len(examples[0].positions)} orders. Questions with the same answer in every order: "
        f"{unchanged}."
    )
