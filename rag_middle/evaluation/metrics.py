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
#: Scripts without spaces between words, or with particles at their ends: Thai to Myanmar, Khmer,
#: Chinese, Japanese, Korean.
_UNSPACED = (
    "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\u9fff"
    "\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc\U00020000-\U0003ffff"
)
_LETTER = rf"[^\W{_UNSPACED}]"
#: As typists write it: hyphens that break no line, the minus of formulas, apostrophes of printers,
#: letters and digits of double width; without what only chooses a character's picture.
_TYPED = str.maketrans(
    {
        **dict.fromkeys("\u2010\u2011\u2212", "-"),
        **dict.fromkeys("\u2018\u2019\u02bc", "'"),
        "\u2044": "/",
        **{chr(ord(sign) + 0xFEE0): sign for sign in string.ascii_letters + string.digits},
        **dict.fromkeys(map(chr, (*range(0xFE00, 0xFE10), 0x20E3)), ""),
    }
)
#: 12 500, 12'500 and 12,500.
_GROUPED = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:([ ',])\d{3})(?:\1\d{3})*(?!\d)")
#: Markdown: _Lyon_, but not my_Lyon_x.
_EMPHASIS = re.compile(r"(?<!\w)(_{1,3})(?=[^\s_])([^_]*)(?<=[^\s_])\1(?!\w)")
#: Punctuation that may stand between two words without a space.
_BETWEEN_WORDS = re.compile(r"(?<=\w)[.,:](?=\w)")
#: A hyphen is a bullet before a letter, and a minus before a digit.
_BULLET = re.compile(r"\A[-\u2022\u2013\u2014] (?=[^\W\d_])")
_LEADING_ARTICLE = re.compile(r"\A(?:an?|the) ")
#: Around a word, with those of Chinese, Hindi and Arabic: quotes, brackets, Markdown's emphasis...
_WORD_EDGES = "\"'`*()[]{}\u201c\u201d\u201e\u00ab\u00bb\u2039\u203a\uff08\uff09\u3010\u3011"
_WORD_EDGES += "".join(map(chr, range(0x3008, 0x3010)))
#: ... and stops.
_WORD_EDGES += ".!?,;:\u2026\u3001\u3002\uff01\uff0c\uff0e\uff1a\uff1b\uff1f\u0964\u061f\u060c"
#: What SQuAD's normalisation leaves out, and the same as printers and other keyboards write it.
_PUNCTUATION = str.maketrans(
    "",
    "",
    string.punctuation
    + "\u2010\u2011\u2012\u2013\u2014\u2212"  # hyphens, dashes, the minus of formulas
    + "\u2018\u2019\u201a\u201b\u02bc\u201c\u201d\u201e\u201f\u00ab\u00bb\u2039\u203a"  # quotes
    + "\u2026\u2044",
)


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

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and largest value; log-likelihoods may exceed 0 by rounding."""
        return (0.0, 1.0) if self.share else (-1e9, 1e-3)

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
        Metric(name="exact_match", title="Exact match"),
        Metric(name="f1", title="F1 of words"),
        Metric(name="greedy_match", title="Accuracy (greedy answer)"),
        Metric(name="log_likelihood", title="Log-likelihood of the answer, nats", share=False),
        # Of a task that decides by itself whether an answer is right.
        Metric(name="accuracy", title="Accuracy"),
        # Right where the answer is in no document, wrong elsewhere: "accuracy" says which.
        Metric(name="abstained", title="Abstentions"),
        Metric(name="answer_contained", title="Accuracy (answer contained as written)"),
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
    plain = _composed(text).lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def as_compared(text: str) -> str:
    """An answer, equal to another that says the same: what `answer_stated` tells apart, apart.

    Case, spaces, an article before the first word, quotes, brackets, Markdown's emphasis and
    punctuation around words make no difference, so "Lyon." and "the lyon" are the same. What
    belongs to a number or a name does: "4.5" and "45", "-5" and "5", "1/2" and "12", "C++" and "C".
    An answer of which nothing would be left ("...") stays as it is written.
    """
    plain = _EMPHASIS.sub(r"\2", _with_groups(text))
    words = (_bare(word) for word in _apart(plain).casefold().split(" "))
    kept = _composed(" ".join(filter(None, words)))
    return _LEADING_ARTICLE.sub("", _BULLET.sub("", kept, 1), 1) or _spaced(text)


def _bare(word: str) -> str:
    """A word without the punctuation around it, but for one dot before it: .5, .NET."""
    word = word.rstrip(_WORD_EDGES)
    bare = word.lstrip(_WORD_EDGES)
    before = word.removesuffix(bare)
    return f".{bare}" if bare and before.endswith(".") and not before.endswith("..") else bare


def best_subspan_em(prediction: str, answers: Sequence[str]) -> float:
    """1 where the prediction contains any answer, both normalised, else 0.

    The score of the Lost in the Middle benchmark (arXiv:2307.03172). Differs: an answer of which
    normalisation leaves nothing ("The", "A", "...") would be contained in every prediction; it is
    looked for as a whole and as it is written.
    """
    text = normalized(prediction)
    return float(
        any(normalized(a) in text if normalized(a) else _states(prediction, a) for a in answers)
    )


def answer_stated(prediction: str, answers: Sequence[str]) -> float:
    """1 where the prediction contains any answer as a whole, in any case, else 0.

    Stricter than `best_subspan_em`, for answers that are names and numbers: neither "12 days" nor
    "2 days-long" states "2 days", "4.5", "-5" and "1/5" do not state "5", and "C++" and "C#" do not
    state "C". One to three digits and groups of three after spaces, apostrophes or commas, in one
    line, are one number: "12 500" states "12500" and "12,500", not "500". Colons, commas and dots
    between two digits belong to a number, dots before letters to a name ("node.js", "U.S."); but
    "Answer:42" states "42", and "Lyon,France" and "It is Lyon.It lies" state "Lyon". Combining
    signs belong to their word; _Lyon_ states "Lyon", and my_Lyon_x does not. Hyphens and the minus
    of formulas are the same sign, so are apostrophes, and letters and digits of both widths. Where
    a script is written without spaces between words (Chinese, Japanese, Thai; Korean, for its
    particles), an answer may stand anywhere.
    """
    return float(any(_states(prediction, answer, re.IGNORECASE) for answer in answers))


def _states(prediction: str, answer: str, flags: re.RegexFlag = re.NOFLAG) -> bool:
    # A sign between word characters belongs to them: 4.5, 725-5315, 10:30.
    return says(prediction, answer, flags, joined="[.,:^-]", signed=True)


def says(
    text: str,
    words: str,
    flags: re.RegexFlag = re.NOFLAG,
    *,
    joined: str = "(?!)",
    signed: bool = False,
) -> bool:
    """Whether a text contains words as a whole, whatever spaces it has between them.

    Args:
        words: nothing is in no text.
        joined: pattern of a sign that belongs to the letters on both sides.
        signed: a sign of a number or a name belongs to it too: -5, .5, 1/5, C++, F#; and so do
            spaces, apostrophes and commas between groups of three digits. Between words, a colon,
            a comma and the end of a sentence belong to neither: Answer:42, Lyon.It.
    """
    wanted, said = _spaced(words), _spaced(text)
    if not wanted:
        return False
    if signed:
        wanted, said = _apart(_with_groups(words)), _apart(_with_groups(text))
    marks = _marks(wanted + said)
    of_words = re.sub(f"[{_UNSPACED}]", "", marks)
    letter = f"(?:{_LETTER}|[{of_words}])" if of_words else _LETTER
    # What begins or ends without spaces around it may touch letters: JR東京駅.
    before = "" if re.match(f"[{_UNSPACED}]", wanted[0]) else f"(?<!{letter})"
    after = "" if re.match(f"[{_UNSPACED}]", wanted[-1]) else f"(?!{letter})"
    if marks:
        after += f"(?![{marks}])"  # in any script
    if re.match(letter, wanted):
        before += f"(?<!{letter}{joined})"
        if signed and wanted[0].isdigit():
            before += r"(?<!(?<![-.])[-.])(?<!\d/)"  # two are a dash, or what was left out
    if re.match(letter, wanted[-1]):
        after += f"(?!{joined}{letter})"
        if signed:
            after += rf"(?!#|\+\+|\+(?!{letter}))"
            after += r"(?!/\d)" if wanted[-1].isdigit() else ""
    pattern = re.compile(before + re.escape(wanted) + after, flags)
    return any(pattern.search(form) for form in (said, _EMPHASIS.sub(r"\2", said)))


def _spaced(text: str) -> str:
    return " ".join(_composed(text).translate(_TYPED).split())


def _with_groups(text: str) -> str:
    """The text, spaced, with nothing between the groups of three digits of a number in a line."""
    lines = map(_spaced, text.splitlines())  # not across them: 3, and below it 250
    return _spaced(
        "\n".join(_GROUPED.sub(lambda n: n[0].replace(n[1], ""), line) for line in lines)
    )


def _apart(text: str) -> str:
    """The text with a space behind punctuation between two words that are no number or name."""

    def spaced(sign: re.Match[str]) -> str:
        left, right = text[sign.start() - 1], text[sign.end()]
        # 4.5, 10:30; node.js, U.S., H.264
        joined = left.isdigit() and right.isdigit()
        if sign[0] == ".":
            joined = joined or left.isupper() or (right.isalpha() and not right.isupper())
        return sign[0] if joined else f"{sign[0]} "

    return _BETWEEN_WORDS.sub(spaced, text)


def _marks(text: str) -> str:
    """The combining signs in a text, which no pattern knows as parts of words."""
    found = {sign for sign in text if sign > "\u02ff" and unicodedata.category(sign)[0] == "M"}
    return "".join(sorted(found))


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """1 where the prediction is an answer, both normalised, else 0.

    Differs from SQuAD's: an answer of which normalisation leaves nothing ("The", "...") would be
    what an empty prediction says; it is compared as it is written, but for spaces.
    """
    return float(any(_same(prediction, answer) for answer in answers))


def _same(prediction: str, answer: str) -> bool:
    compared = normalized if normalized(answer) else _spaced
    return compared(prediction) == compared(answer)


def f1(prediction: str, answers: Sequence[str]) -> float:
    """Harmonic mean of precision and recall of words, both normalised; best over the answers.

    An answer of which normalisation leaves nothing is compared as in `exact_match`.
    """
    best, predicted = 0.0, normalized(prediction).split()
    for answer in answers:
        wanted = normalized(answer).split()
        if not predicted or not wanted:
            best = max(best, float(_same(prediction, answer)))
            continue
        shared = sum((Counter(predicted) & Counter(wanted)).values())
        # 2 p r / (p + r) with p = shared / predicted words and r = shared / wanted words
        best = max(best, 2 * shared / (len(predicted) + len(wanted)))
    return best


def answer_contained(prediction: str, answers: Sequence[str]) -> float:
    """1 where the prediction contains any answer letter by letter, else 0; NoLiMa's ``contains``.

    Source: ``evaluation/async_evaluate.py`` of adobe-research/NoLiMa. Differs: NFC and NFD are the
    same, as in `normalized`.
    """
    text = _composed(prediction)
    return float(any(_composed(answer) in text for answer in answers))


#: Scores of a generated answer against all right ones.
ANSWER_METRICS: dict[str, Callable[[str, Sequence[str]], float]] = {
    score.__name__: score
    for score in (answer_contained, answer_stated, best_subspan_em, exact_match, f1)
}
