"""Scores of the benchmarks. They are computed as the benchmarks' own scorers do, line by line said.

Everything is a share between 0 and 1, higher is better; only deviations of an order are negative.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from functools import cache
from typing import Any

from rag_middle.evaluation import METRICS, Metric
from rag_middle.evaluation.metrics import f1
from rag_middle.extras import require

_NUMBER = re.compile(r"\d+")
#: Deviations of an order, by the names of LooGLE's paper (arXiv:2311.04939).
DEVIATIONS = ("lsd", "lmd", "sd", "sdd")

for _metric in (
    Metric(name="rouge_l", title="ROUGE-L"),
    Metric(name="rouge_mean", title="ROUGE, geometric mean"),
    Metric(name="classification", title="Accuracy of the class"),
    Metric(name="numbers_right", title="Accuracy of numbers"),
    Metric(name="code_similarity", title="Edit similarity of code"),
    Metric(name="percentage_similarity", title="Exponential similarity of the percentage"),
    Metric(name="concordance", title="Concordance of the order"),
    *(
        Metric(name=name, title=f"{name.upper()} of the order, negated", share=False, unit=unit)
        for name, unit in zip(DEVIATIONS, ("places²", "places", "swaps", "places"), strict=True)
    ),
):
    METRICS[_metric.name] = _metric


@cache
def _scorer(stem: bool) -> Any:
    library = require("rouge_score.rouge_scorer", package="rouge-score", what="ROUGE", extra="eval")
    return library.RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=stem)


def rouge(answer: str, reference: str, *, stem: bool = False) -> dict[str, float]:
    """F-measures of ROUGE-1, 2 and L by rouge-score.

    LongBench takes them from the package rouge, which counts repeated words of the longest common
    subsequence otherwise; differences are in the third digit.

    Raises:
        MissingExtraError: rouge-score is not installed.
    """
    scores = _scorer(stem).score(reference, answer)
    return {name: float(score.fmeasure) for name, score in scores.items()}


def rouge_mean(answer: str, reference: str) -> float:
    """Geometric mean of ROUGE-1, 2 and L with stemming, as SCROLLS has it (arXiv:2201.03533)."""
    one, two, longest = rouge(answer, reference, stem=True).values()
    return float((one * two * longest) ** (1 / 3))


def classification(answer: str, label: str, classes: Sequence[str]) -> float:
    """LongBench's: the label's share among the classes that the answer names.

    Classes that are part of the label do not count. (The benchmark removes them from a list while
    it walks over it, which skips the next one; here all are removed.)
    """
    named = [name for name in classes if name in answer and (name == label or name not in label)]
    return 1 / len(named) if label in named else 0.0


def numbers_right(answer: str, reference: str) -> float:
    """LongBench's count and retrieval score: the share of the answer's numbers that are right."""
    numbers, wanted = _NUMBER.findall(answer), _NUMBER.findall(reference)[:1]
    return sum(number in wanted for number in numbers) / len(numbers) if numbers else 0.0


def code_similarity(answer: str, reference: str) -> float:
    """LongBench's: similarity of the first line that is code.

    With difflib, as the benchmark's fuzzywuzzy does where no faster library is installed, rounded
    to whole per cent as there.
    """
    lines = answer.lstrip("\n").split("\n")
    code = (line for line in lines if not any(sign in line for sign in ("`", "#", "//")))
    return round(100 * SequenceMatcher(None, next(code, ""), reference).ratio()) / 100


def percentage_similarity(answer: str, reference: str) -> float:
    """ZeroSCROLLS' (arXiv:2305.14196) of SpaceDigest: ``2 ** (-10 |p - q|)`` of two shares."""
    stated = re.search(r"\d+(?:\.\d+)?", answer)
    wanted = re.search(r"\d+(?:\.\d+)?", reference)
    if stated is None or wanted is None:
        return 0.0
    return float(2 ** (-10 * abs(float(stated[0]) - float(wanted[0])) / 100))


def concordance(answer: str, reference: str) -> float:
    """ZeroSCROLLS' score of BookSumSort: the share of pairs in the right order.

    0 unless the answer is an order of the same things, each once.
    """
    stated, wanted = ([int(n) for n in _NUMBER.findall(text)] for text in (answer, reference))
    if sorted(stated) != sorted(wanted) or len(wanted) < 2:
        return 0.0
    rank = {thing: index for index, thing in enumerate(stated)}
    pairs = [(a, b) for i, a in enumerate(wanted) for b in wanted[i + 1 :]]
    return sum(rank[a] < rank[b] for a, b in pairs) / len(pairs)


def order_deviations(stated: Sequence[int], wanted: Sequence[int]) -> dict[str, float]:
    """LooGLE's deviations of an order, negated so that higher is better.

    Of the places that things have in `stated` and should have: mean squared difference (LSD), mean
    difference (LMD), fewest swaps that put them right (SD), and the distance over which the greedy
    swaps go (SDD). What is no order of the same things gets the largest deviation of its length.

    These are the definitions (arXiv:2311.04939, appendix). The stored scorer takes the largest
    deviation for every answer but those that fail, averages over the first line only, and breaks
    off where an answer has another number of events; none of that is followed.
    """
    n = len(wanted)
    if sorted(stated) != sorted(wanted):
        return {
            "lsd": -(n * n - 1) / 3,
            "lmd": -(n * n // 2) / n,
            "sd": 1.0 - n,
            "sdd": -(n * n // 4),
        }
    places = [stated.index(thing) for thing in wanted]
    distances = [abs(place - index) for index, place in enumerate(places)]
    return {
        "lsd": -sum(distance**2 for distance in distances) / n,
        "lmd": -sum(distances) / n,
        "sd": -(n - _cycles(places)),
        # A swap over d places that is worth its way takes 2 d off the sum of the distances, and
        # there always is one.
        "sdd": -sum(distances) / 2,
    }


def _cycles(places: Sequence[int]) -> int:
    unseen, count = set(range(len(places))), 0
    while unseen:
        count += 1
        at = unseen.pop()
        while (at := places[at]) in unseen:
            unseen.remove(at)
    return count


# -- L-Eval, and ZeroSCROLLS' choices -------------------------------------------------------------


def _letters(answer: str, right: str) -> float:
    """All right letters and no other: 1; some of them and no wrong one: 0.25."""
    begin = re.match(r"\W*([A-D]+)(?![A-Za-z])", answer)
    stated = set(begin[1]) if begin else set(re.findall(r"(?<![A-Za-z])[A-D](?=[\s.)])", answer))
    wanted = set(re.sub(r"[^A-D]", "", right.split()[0]))
    if stated == wanted:
        return 1.0
    return 0.25 if stated and stated < wanted else 0.0


def _letter(answer: str, right: str) -> float:
    stated = re.search(r"[A-D]", answer)
    return float(stated is not None and stated[0] in right.split()[0])


def _choice(answer: str, right: str) -> float:
    """1 where the first letter of a choice is the right one."""
    stated, wanted = (
        re.search(r"(?<![A-Za-z])[A-D](?![A-Za-z])", text) for text in (answer, right)
    )
    return float(stated is not None and wanted is not None and stated[0] == wanted[0])


def _number(answer: str, right: str) -> float:
    """The number after "The answer is", else the last one before an empty line."""
    said = re.search(r"The answer is (\S+)", answer)
    words = [said[1]] if said else answer.partition("\n\n")[0].split(" ")
    digits = [re.sub(r"\D", "", word.partition(".")[0]) for word in words]
    return float(next((d for d in reversed(digits) if d), None) == re.sub(r"\D", "", right))


def _contained(answer: str, right: str) -> float:
    squeezed = (re.sub(r"\s", "", text.lower().rstrip(" .")) for text in (right, answer))
    wanted, stated = squeezed
    return float(wanted in stated)


def _loyal(answer: str, right: str) -> float:
    """Whether the answer follows the document; what it says of the real world is not asked."""
    stated = re.search(r"true|false", answer.lower())
    return float(stated is not None and right.lower().startswith(stated[0]))


#: Of an answer and the right one, by their names in ``benchmarks.yaml``.
SCORES: Mapping[str, Callable[..., float]] = {
    "choice": _choice,
    "classification": classification,
    "code_similarity": code_similarity,
    "concordance": concordance,
    "contained": _contained,
    "f1": lambda answer, right: f1(answer, [right]),
    "letter": _letter,
    "letters": _letters,
    "loyal": _loyal,
    "number": _number,
    "numbers_right": numbers_right,
    "percentage_similarity": percentage_similarity,
    "rouge_l": lambda answer, right: rouge(answer, right)["rougeL"],
    "rouge_mean": rouge_mean,
}
