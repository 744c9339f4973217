"""Equations as one line of text: those of pages (MathML) and of Word documents (OMML).

Different equations have different texts: what is composed stands in parentheses where something
else could be read (``(1/2) x`` and ``1/(2 x)``), and a space between two factors.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rag_middle.retrieval.symbols import run_text, symbol_text

__all__ = ["EQUATION", "MathText", "equation_text"]

_DEEPEST = 40  # elements inside each other; deeper ones are text without signs
_LONGEST_SIGN = 8  # characters; one that stands between a million parts must not be long
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_NO_LINE = re.compile(r"linethickness\s*=\s*(?:[\"']\s*)?(?:0+(?:\.0*)?|\.0+)(?![\d.])")
_FENCE = {
    name: re.compile(rf"\s{name}\s*=\s*(?:\"([^\"]*)\"|'([^']*)')")
    for name in ("open", "close", "separators")
}
#: "Applied to", "times" and the like are seen nowhere; "plus" is that of 2½.
_INVISIBLE = {0x2061: None, 0x2062: None, 0x2063: None, 0x2064: "+"}
#: Beside these a fraction needs no parentheses.
_BEFORE = frozenset("([{=+-−<>≤≥≈≠≡→,;")
_AFTER = frozenset(")]}=+-−<>≤≥≈≠≡→,;")


@dataclass(frozen=True, slots=True)
class _Token:
    """A part of an equation.

    Attributes:
        text: of it.
        is_leaf: a number, a name, a sign; else it is composed.
        is_open: beside something else it needs parentheses.
    """

    text: str
    is_leaf: bool = False
    is_open: bool = False


_Tokens = list[_Token]


def _leaf(text: str) -> _Tokens:
    words = " ".join(text.translate(_INVISIBLE).split())
    return [_Token(words, is_leaf=True)] if words else []


def _joined(tokens: Sequence[_Token]) -> str:
    """Parts side by side."""
    pieces: list[str] = []
    last = len(tokens) - 1
    for index, token in enumerate(tokens):
        text = token.text
        if token.is_open and last:
            before = tokens[index - 1].text[-1:] if index else "("
            after = tokens[index + 1].text[:1] if index < last else ")"
            if before not in _BEFORE or after not in _AFTER:
                text = f"({text})"
        # After a composed part a space; operators and brackets stand close.
        if pieces and _is_word(pieces[-1][-1:], tokens[index - 1]) and _is_word(text[:1], token):
            pieces.append(" ")
        pieces.append(text)
    return "".join(pieces)


def _is_word(character: str, token: _Token) -> bool:
    return character.isalnum() or not token.is_leaf


def _operand(tokens: Sequence[_Token], *, words: bool = True) -> str:
    """A part on which a sign acts.

    Args:
        tokens: of the part.
        words: letters side by side are one name; else they are factors.
    """
    text = _joined(tokens)
    if len(tokens) == 1 and tokens[0].is_leaf:
        is_name = words and text.isalpha()
        if len(text) == 1 or is_name or _NUMBER.fullmatch(text):
            return text
    return f"({text})"


def _fraction(top: _Tokens, bottom: _Tokens, *, words: bool = True, line: bool = True) -> _Token:
    if not line:
        return _Token(f"binom({_joined(top)}, {_joined(bottom)})")
    over, under = _operand(top, words=words), _operand(bottom, words=words)
    return _Token(f"{over}/{under}", is_open=True)


def _indices(sub: _Tokens, sup: _Tokens, *, words: bool = True) -> str:
    below = f"_{_operand(sub, words=words)}" if sub else ""
    return below + (f"^{_operand(sup, words=words)}" if sup else "")


def _scripted(base: _Tokens, indices: str, *, words: bool = True) -> _Token:
    return _Token((_operand(base, words=words) if base else "") + indices)


def _root(base: _Tokens, degree: _Tokens) -> _Token:
    if degree:
        return _Token(f"root({_joined(base)}, {_joined(degree)})")
    return _Token(f"√({_joined(base)})")


def _table(rows: Sequence[str]) -> _Token:
    return _Token(f"[{'; '.join(rows)}]")


def _fenced(parts: Sequence[_Tokens], begin: str, between: Sequence[str], end: str) -> _Tokens:
    tokens = _leaf(begin)
    for index, part in enumerate(parts):
        if index and between:
            tokens += _leaf(between[min(index, len(between)) - 1])
        tokens += [_Token(f"({_joined(part)})")] if index and not between else part
    return tokens + _leaf(end)


# -- pages --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Element:
    tag: str
    attributes: str
    parts: list[_Tokens]
    texts: list[str] = field(default_factory=list)


class MathText:
    """The text of a ``<math>`` element, whose tags and text come one by one: (a+b)/c, x_1^2."""

    def __init__(self) -> None:
        self._open = [_Element("math", "", [])]

    def begin(self, tag: str, attributes: str = "") -> None:
        """An element begins."""
        self._take_text()
        if len(self._open) < _DEEPEST:
            self._open.append(_Element(tag, attributes, []))

    def end(self, tag: str) -> None:
        """An element ends, and those that are open in it."""
        self._take_text()
        if any(tag == element.tag for element in self._open[1:]):
            ended = ""
            while ended != tag:
                ended = self._end_last()

    def text(self, text: str) -> None:
        """Text of the innermost element."""
        self._open[-1].texts.append(text)

    def close(self) -> str:
        """The whole text, once ``<math>`` ends."""
        self._take_text()
        while len(self._open) > 1:
            self._end_last()
        return _joined([token for part in self._open[0].parts for token in part])

    def _take_text(self) -> None:
        element = self._open[-1]
        if leaf := _leaf("".join(element.texts)):
            element.parts.append(leaf)
        element.texts.clear()

    def _end_last(self) -> str:
        element = self._open.pop()
        self._open[-1].parts.append(_composed(element))
        return element.tag


def _composed(element: _Element) -> _Tokens:
    """The tokens of a MathML element from those of its parts."""
    tag, parts = element.tag, element.parts
    row = [token for part in parts for token in part]
    first, second, third = (*parts, [], [], [])[:3]
    match tag:
        case "mfrac":
            line = not _NO_LINE.search(element.attributes)
            return [_fraction(first, second, line=line)]
        case "msup" | "mover":
            return [_scripted(first, _indices([], second))]
        case "msub" | "munder":
            return [_scripted(first, _indices(second, []))]
        case "msubsup" | "munderover":
            return [_scripted(first, _indices(second, third))]
        case "msqrt":
            return [_root(row, [])]
        case "mroot":
            return [_root(first, second)]
        case "mprescripts":
            return [_Token(tag)]
        case "mmultiscripts":
            return _multiscripts(parts)
        case "mfenced":
            begin, end, between = (
                _attribute(element, name, usual)
                for name, usual in (("open", "("), ("close", ")"), ("separators", ","))
            )
            signs = [sign[:_LONGEST_SIGN] for sign in between.split()]
            return _fenced(parts, begin, signs, end)
        case "mtd":
            return [_Token(_joined(row))]
        case "mtr":
            return [_Token(", ".join(map(_joined, parts)))]
        case "mtable":
            return [_table([_joined(part) for part in parts])]
    return row


def _multiscripts(parts: list[_Tokens]) -> _Tokens:
    marks = [index for index, part in enumerate(parts) if part == [_Token("mprescripts")]]
    at = marks[0] if marks else len(parts)

    def pairs(scripts: list[_Tokens]) -> str:
        padded = [*scripts, []]
        return "".join(_indices(*padded[i : i + 2]) for i in range(0, len(scripts), 2))

    base = parts[0] if at else []
    token = _scripted(base, pairs(parts[1:at]))
    before = pairs(parts[at + 1 :])
    return [_Token(f"{before} {token.text}", is_open=True) if before else token]


def _attribute(element: _Element, name: str, usual: str) -> str:
    found = _FENCE[name].search(element.attributes)
    return usual if found is None else found[1] or found[2] or ""


# -- Word documents -----------------------------------------------------------------------------

_MATH = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
EQUATION = f"{_MATH}oMath"


def equation_text(element: Any, not_shown: tuple[str, ...] = ()) -> str:
    """The text of an ``m:oMath`` element of a Word document, or of a part of one.

    Args:
        element: of lxml.
        not_shown: tags that are left out, with all that is in them.
    """
    return _joined(_word_tokens(element, not_shown))


def _word_tokens(element: Any, not_shown: tuple[str, ...]) -> _Tokens:
    kind = str(element.tag).removeprefix(_MATH)
    parts: dict[str, list[_Tokens]] = {}
    row: _Tokens = []
    run = ""  # Word cuts a number or a name into several runs as it likes
    for child in element:
        if child.tag in not_shown or not isinstance(child.tag, str):
            continue
        name = child.tag.removeprefix(_MATH)
        if child.tag.endswith("}r") or child.tag.endswith("}t"):
            run += _run_text(child, not_shown)
            continue
        row += _leaf(run)
        run = ""
        parts.setdefault(name, []).append(_word_tokens(child, not_shown))
        row += parts[name][-1]
    row += _leaf(run)
    first = {name: several[0] for name, several in parts.items()}
    base, sub, sup = (first.get(name, []) for name in ("e", "sub", "sup"))
    indices = _indices(sub, sup, words=False)
    match kind:
        case "f":
            line = _property(element, "fPr", "type", "bar") != "noBar"
            top, bottom = first.get("num", []), first.get("den", [])
            return [_fraction(top, bottom, words=False, line=line)]
        case "sSup" | "sSub" | "sSubSup":
            return [_scripted(base, indices, words=False)]
        case "sPre":
            return [_Token(f"{indices} {_operand(base, words=False)}", is_open=True)]
        case "rad":
            return [_root(base, first.get("deg", []))]
        case "nary":
            sign = _property(element, "naryPr", "chr", "∫")
            return [_Token(f"{sign}{indices} {_operand(base, words=False)}", is_open=True)]
        case "d":
            begin, between, end = (
                _property(element, "dPr", name, usual)
                for name, usual in (("begChr", "("), ("sepChr", "|"), ("endChr", ")"))
            )
            return _fenced(parts.get("e", []), begin, [between] if between else [], end)
        case "mr":
            return [_Token(", ".join(map(_joined, parts.get("e", []))))]
        case "m" | "eqArr":
            return [_table([_joined(part) for part in parts.get("mr", parts.get("e", []))])]
        case "limLow":
            return [_scripted(base, _indices(first.get("lim", []), [], words=False))]
        case "limUpp":
            return [_scripted(base, _indices([], first.get("lim", []), words=False))]
        case "acc":
            sign = _property(element, "accPr", "chr", "\u0302")
            return [_scripted(base, f"^{sign}", words=False)]
        case "bar":
            below = _property(element, "barPr", "pos", "bot") == "bot"
            return [_scripted(base, "_¯" if below else "^¯", words=False)]
        case "func":
            name = _joined(first.get("fName", []))
            return [_Token(f"{name} {_operand(base, words=False)}", is_open=True)]
    return row


def _run_text(run: Any, not_shown: tuple[str, ...]) -> str:
    if str(run.tag).endswith("}t"):  # of OMML, or Word's own
        return run_text(run)
    if str(run.tag).endswith("}sym"):
        return symbol_text(run)
    return "".join(
        _run_text(child, not_shown)
        for child in run
        if isinstance(child.tag, str) and child.tag not in not_shown
    )


def _property(element: Any, of: str, name: str, usual: str) -> str:
    found = element.find(f"{_MATH}{of}/{_MATH}{name}")
    return usual if found is None else str(found.get(f"{_MATH}val", ""))[:_LONGEST_SIGN]
