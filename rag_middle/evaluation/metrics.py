"""How an answer is scored, and which direction is better."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rag_middle.errors import UnknownNameError
from rag_middle.registry import suggest
from rag_middle.wording import percent

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_LEADING_ARTICLE = re.compile(r"\A(?:an?|the) ")
#: What SQuAD's normalisation leaves out, and the same as printers and other keyboards write it.
_PUNCTUATION = str.maketrans(
    "",
    "",
    string.punctuation
    + "\u2010\u2011\u2012\u2013\u2014\u2212"  # hyphens, dashes, the minus of formulas
    + "\u2018\u2019\u201a\u201b\u02bc\u201c\u201d\u201e\u201f\u00ab\u00bb\u2039\u203a"  # quotes
    + "\u2026\u2044",
)
#: As typists write it, without what only chooses a character's picture.
_TYPED = str.maketrans(
    {
        **dict.fromkeys("\u2010\u2011\u2212", "-"),
        **dict.fromkeys("\u2018\u2019\u02bc", "'"),
        "\u2044": "/",
        **dict.fromkeys(map(chr, (*range(0xFE00, 0xFE10), 0x20E3)), ""),
    }
)
#: 12 500, 12'500 and 12,500.
_GROUPED = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:([ ',])\d{3})(?:\1\d{3})*(?!\d)")
#: Punctuation of no number and no name: Answer:42, Lyon,France, Lyon.It, Nantes/Lyon.
_BETWEEN_WORDS = re.compile(
    r"(?<!\d)[,:]|[,:](?!\d)|(?<=[^\W\d_])/(?=[^\W\d_])|(?<=[a-z\d])\.(?=[A-Z])|(?<=[a-z])\.(?=\d)|--+"
)
#: Around a word, with those of Chinese, Hindi and Arabic: quotes, brackets, emphasis, stops.
_WORD_EDGES = "\"'`*_()[]{}\u201c\u201d\u201e\u00ab\u00bb\u2039\u203a\u3010\u3011.!?,;:"
_WORD_EDGES += "\u3001\u3002\u0964\u061f\u060c" + "".join(map(chr, range(0x3008, 0x3010)))
#: Scripts without spaces between words, or with particles at their ends: Thai to Myanmar, Khmer,
#: Chinese, Japanese, Korean.
_UNSPACED = (
    "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\u9fff"
    "\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
)
_UNSPACED_LETTER = re.compile(f"[{_UNSPACED}]")
_BEHIND_UNSPACED = re.compile(f"(?<=[{_UNSPACED}])(?=[^{_UNSPACED}])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A score of one answer; higher is better.

    Attributes:
        name: in records and options.
        title: in tables and on axes.
        tolerance: values closer than this count as a tie.
        share: it lies between 0 and 1 and is shown in per cent; else it is at most 0.
        unit: of a value that is no share.
    """

    name: str
    title: str
    tolerance: float = 0.01
    share: bool = True
    unit: str = "nats"

    def shown(self, value: float) -> str:
        """A value with its unit: ``79.0 %``, ``−0.35 nats``."""
        return percent(value, 1) if self.share else f"{value:.2f} {self.unit}".replace("-", "−")

    def amount(self, value: float) -> str:
        """A difference of two values with its unit: ``12.0 points``, ``0.35 nats``."""
        return f"{100 * value:.1f} points" if self.share else f"{value:.2f} {self.unit}"


#: By name. A package that brings tasks with scores of its own adds them here.
METRICS = {
    metric.name: metric
    for metric in (
        Metric(name="answer_stated", title="Accuracy"),
        Metric(name="best_subspan_em", title="Accuracy (answer contained)"),
        Metric(name="f1", title="F1 of words"),
        Metric(name="greedy_match", title="Accuracy (greedy answer)"),
        Metric(name="log_likelihood", title="Log-likelihood of the answer, nats", share=False),
        # Of a task that decides by itself whether an answer is right.
        Metric(name="accuracy", title="Accuracy"),
    )
}


def metric(name: str) -> Metric:
    """The metric of that name.

    Raises:
        UnknownNameError: there is none, with the nearest name.
    """
    if name not in METRICS:
        raise UnknownNameError(
            f"Unknown metric {name!r}.{suggest(name, METRICS)} Metrics: {', '.join(METRICS)}."
        )
    return METRICS[name]


def normalized(text: str) -> str:
    """SQuAD's normalisation: lower case, no punctuation, no articles, single spaces.

    Differs: an accent beside its letter (NFD) and the letter with its accent (NFC) are the same,
    and quotes, dashes and apostrophes of printers are punctuation too.
    """
    plain = unicodedata.normalize("NFC", text).lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def words(text: str, *, folded: bool = True) -> list[str]:
    """The words, names and numbers of a text, without punctuation around them.

    "4.5", "-5", "1/2", "10:30", "725-5315", "C++", ".NET", "node.js" and "days-long" are one each,
    and so is "12 500", as "12500". In a script without spaces between words every letter is one.

    Args:
        folded: case makes no difference.
    """
    typed = unicodedata.normalize("NFKC", text).translate(_TYPED)
    typed = _GROUPED.sub(lambda number: number[0].replace(number[1], ""), typed)
    spaced = _BETWEEN_WORDS.sub(" ", typed)
    if _UNSPACED_LETTER.search(spaced):
        spaced = _BEHIND_UNSPACED.sub(" ", _UNSPACED_LETTER.sub(_letter_alone, spaced))
    bare = (_bare(word) for word in (spaced.casefold() if folded else spaced).split())
    return [word for word in bare if any(map(str.isalnum, word))]


def _letter_alone(letter: re.Match[str]) -> str:
    """With a space before it, unless it is a sign that belongs to the letter before."""
    return letter[0] if unicodedata.category(letter[0])[0] == "M" else f" {letter[0]}"


def _bare(word: str) -> str:
    """A word without the punctuation around it, but for one dot before it: .5, .NET."""
    word = word.rstrip(_WORD_EDGES).removesuffix("'s").rstrip(_WORD_EDGES)
    bare = word.lstrip(_WORD_EDGES)
    before = word.removesuffix(bare)
    return f".{bare}" if before.endswith(".") and not before.endswith("..") else bare


def states(text: str, answer: str, *, folded: bool = True) -> bool:
    """Whether a text contains the words of an answer, one after the other.

    An answer without words ("...") is looked for as it is written.
    """
    wanted, said = words(answer, folded=folded), words(text, folded=folded)
    if not wanted:
        wanted, said = answer.split(), text.split()
    # No word has a space in it.
    return bool(wanted) and f" {' '.join(wanted)} " in f" {' '.join(said)} "


def as_compared(text: str) -> str:
    """An answer, equal to another that says the same: what `states` tells apart, apart.

    Case, spaces, an article before the first word, quotes, brackets, Markdown's emphasis and
    punctuation around words make no difference, so "Lyon." and "the lyon" are the same. An answer
    of which nothing would be left ("...") stays as it is written.
    """
    return _LEADING_ARTICLE.sub("", " ".join(words(text))) or text.strip()


def best_subspan_em(prediction: str, answers: Sequence[str]) -> float:
    """1 where the prediction contains any answer, both normalised, else 0.

    The score of the Lost in the Middle benchmark (arXiv:2307.03172). Differs: an answer of which
    normalisation leaves nothing ("The", "A", "...") would be contained in every prediction; it is
    looked for as whole words, as they are written.
    """
    text = normalized(prediction)
    return float(
        any(
            normalized(answer) in text
            if normalized(answer)
            else states(prediction, answer, folded=False)
            for answer in answers
        )
    )


def answer_stated(prediction: str, answers: Sequence[str]) -> float:
    """1 where the prediction contains any answer as whole words, in any case, else 0.

    Stricter than `best_subspan_em`, for answers that are names and numbers (`words`): neither
    "12 days" nor "2 days-long" states "2 days", "4.5", "-5" and "1/5" do not state "5", and "C++"
    does not state "C"; "12 500" states "12,500".
    """
    return float(any(states(prediction, answer) for answer in answers))


def f1(prediction: str, answers: Sequence[str]) -> float:
    """Harmonic mean of precision and recall of words, both normalised; best over the answers.

    An answer of which normalisation leaves nothing ("The", "...") is compared as it is written.
    """
    best, predicted = 0.0, normalized(prediction).split()
    for answer in answers:
        wanted = normalized(answer).split()
        if not predicted or not wanted:
            same = not wanted and prediction.split() == answer.split()
            best = max(best, float(same))
            continue
        shared = sum((Counter(predicted) & Counter(wanted)).values())
        # 2 p r / (p + r) with p = shared / predicted words and r = shared / wanted words
        best = max(best, 2 * shared / (len(predicted) + len(wanted)))
    return best


#: Scores of a generated answer against all correct ones.
ANSWER_METRICS: dict[str, Callable[[str, Sequence[str]], float]] = {
    score.__name__: score for score in (answer_stated, best_subspan_em, f1)
}
