"""Raised and lowered text within a line: 10^23, 10^(3/2), H2O, 1st.

It never melts with what it touches into another word or number.
"""

from __future__ import annotations

import re
from unicodedata import category

__all__ = ["script_end", "script_text", "set_fraction", "touches"]

_NUMBER = r"\d+(?:[.,]\d+)*"
#: Needs no parentheses: a number, a charge, a word or letter, one in parentheses.
_SIMPLE = re.compile(rf"[+\-−–±]?{_NUMBER}[+\-−]?|[+\-−–±]?[^\W\d_]+|[+\-−]|\([^()]*\)")
_LOWERED = re.compile(rf"{_NUMBER}|[^\W\d_]+|\([^()]*\)")
#: What ends a number that is not a power: ordinals, and houses in French.
_ORDINAL = re.compile(
    "st|nd|rd|ths?|[aeoªº]|[ao]s|ers?|res?|ères?|nde?s?|i?[eèé]mes?|[dmnrtv][ao]|bis|ter|quater"
    "|tm|sm"
)
_CITATION = re.compile(r"(?:\[[^\[\]]*\][,\s]?)+")
_STARS = "∗⋆"  # signs of footnotes that Unicode counts as operators
_AFTER = ")]}|⟩"
_DIGIT_AND_POINT = re.compile(r"\d[.,:/⁄∕-]")
_POWER = re.compile(r"\A\^(\d+)\Z")
_SLASHES = ("/", "⁄", "∕")


def script_text(text: str, before: str, *, raised: bool) -> str:
    """Raised or lowered text as it is written in a line.

    Args:
        text: of it.
        before: the two characters before it.
        raised: above the line.
    """
    written = " ".join(text.split())
    last = before[-1:]
    if not written:
        return text
    if raised:
        is_part = last.isalnum() or (last != "" and last in _AFTER)
        # A note behind the end of a sentence, but "2019.3" is a number.
        is_number = _DIGIT_AND_POINT.fullmatch(before) and written[0].isdigit()
        if not (is_number or (is_part and not _is_mark(written, last))):
            return text
        sign = "^"
    else:
        is_plain = _LOWERED.fullmatch(written) or not any(map(str.isalnum, written))
        is_part = last.isdigit() or (last.isalpha() and not is_plain)
        if not is_part:
            return text
        sign = "_"
    if "\n" in text:  # of several lines: only the first touches anything
        return sign + text.lstrip()
    return sign + (written if _SIMPLE.fullmatch(written) else f"({written})")


def script_end(text: str, written: str, before: str, *, raised: bool) -> str:
    """What must not touch the end of raised or lowered text.

    Args:
        text: of it.
        written: as :func:`script_text` gives it.
        before: the character before it.
        raised: above the line.

    Returns:
        ``"word"`` for letters and digits, ``"number"`` for digits (O follows in H<sub>2</sub>O,
        another number in log_10 2), or nothing.
    """
    last = text.strip()[-1:]
    if written != text or (raised and touches(before, last)) or (not raised and last.isalpha()):
        return "word"
    return "number" if last.isdigit() else ""


def _is_mark(written: str, last: str) -> bool:
    """Whether raised text belongs to the word before it: ``st``, ``TM``, ``[3]``, ``*``."""
    if written.isalpha():
        # Mme, no, TM; but a single letter is a power: x^n.
        is_word = len(written) > 1 or written in "aeoªº"
        return is_word and (last.isalpha() or _ORDINAL.fullmatch(written.lower()) is not None)
    if _CITATION.fullmatch(written):
        return True
    return not any(
        character.isalnum()
        or character in "+-–"
        or (category(character) == "Sm" and character not in _STARS)
        for character in written
    )


def set_fraction(pieces: list[str], end: int, lowered: str) -> None:
    """Make ``5^3``, ``/`` before the lowered ``4`` a fraction: ``5 3``, ``/``.

    Args:
        pieces: of the line.
        end: of those before the lowered text.
        lowered: digits, else nothing is done.
    """
    if end > 1 and pieces[end - 1] in _SLASHES and lowered.strip().isdigit():
        pieces[end - 2] = _POWER.sub(r" \1", pieces[end - 2])


def touches(before: str, after: str) -> bool:
    """Whether two texts side by side would be read as one word or number."""
    return before[-1:].isalnum() and after[:1].isalnum()
