"""Equations as one line of text: those of pages (MathML) and of Word documents (OMML)."""

from __future__ import annotations

from typing import Any

__all__ = ["EQUATION", "MathText", "equation_text"]

_DEEPEST = 40  # elements inside each other; deeper ones are text without signs
_FEW = 8  # pieces: a part of more is put in parentheses unread
#: Before the first part, between the parts, and after the last.
_SIGNS = {
    "mfrac": ("", "/", ""),
    "msup": ("", "^", ""),
    "mover": ("", "^", ""),
    "msub": ("", "_", ""),
    "munder": ("", "_", ""),
    "msubsup": ("", "_^", ""),
    "munderover": ("", "_^", ""),
    "msqrt": ("√(", "", ")"),
    "mroot": ("root(", ",", ")"),
    "mtd": ("", "", " "),
    "mtr": ("", "", "; "),
}
_INVISIBLE = dict.fromkeys(range(0x2061, 0x2065))  # "applied to", "times" and the like


class MathText:
    """The text of a ``<math>`` element, whose tags and text come one by one: (a+b)/c, x_1^2.

    Args:
        pieces: that the text is added to.
    """

    def __init__(self, pieces: list[str]) -> None:
        self._pieces = pieces
        #: Of each open element its tag, the parts begun in it, and where its parenthesis stands.
        self._open: list[tuple[str, list[int], int | None]] = []

    def begin(self, tag: str) -> None:
        """An element begins."""
        parenthesis = None
        if self._open:
            above, parts, _ = self._open[-1]
            _, between, _ = _SIGNS.get(above, ("", "", ""))
            if between:
                if parts[0]:
                    self._pieces.append(between[min(parts[0], len(between)) - 1])
                parenthesis = len(self._pieces)
                self._pieces.append("(")
            parts[0] += 1
        if len(self._open) < _DEEPEST:
            self._open.append((tag, [0], parenthesis))
            self._add(_SIGNS.get(tag, ("", "", ""))[0])
        elif parenthesis is not None:
            self._pieces[parenthesis] = ""

    def end(self, tag: str) -> None:
        """An element ends, and those that are open in it."""
        if all(tag != opened for opened, _, _ in self._open):
            return
        ended = ""
        while ended != tag:
            ended, _, parenthesis = self._open.pop()
            self._add(_SIGNS.get(ended, ("", "", ""))[2])
            if parenthesis is not None:
                few = len(self._pieces) - parenthesis <= _FEW
                if few and _is_one("".join(self._pieces[parenthesis + 1 :])):
                    self._pieces[parenthesis] = ""
                else:
                    self._pieces.append(")")

    def _add(self, sign: str) -> None:
        if sign:
            self._pieces.append(sign)

    def text(self, text: str) -> None:
        """Text of the innermost element."""
        words = " ".join(text.translate(_INVISIBLE).split())
        if not words:
            return
        before = next((piece for piece in reversed(self._pieces[-4:]) if piece), "")
        # Letters side by side are factors, words (sin, if) are not.
        if words[:1].isalpha() and before[-1:].isalpha() and max(len(words), len(before)) > 1:
            words = f" {words}"
        self._pieces.append(words)


_MATH = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
EQUATION = f"{_MATH}oMath"


def equation_text(element: Any, not_shown: tuple[str, ...] = ()) -> str:
    """The text of an ``m:oMath`` element of a Word document, or of a part of one.

    Args:
        element: of lxml.
        not_shown: tags that are left out, with all that is in them.
    """
    if str(element.tag).endswith("}t"):  # of OMML, or Word's own
        return element.text or ""
    kind = str(element.tag).removeprefix(_MATH)
    parts: dict[str, list[str]] = {}
    whole = []
    for child in element:
        if child.tag not in not_shown and isinstance(child.tag, str):
            whole.append(equation_text(child, not_shown))
            parts.setdefault(child.tag.removeprefix(_MATH), []).append(whole[-1])
    first = {name: _grouped(texts[0]) for name, texts in parts.items()}
    base, sub, sup = (first.get(name, "") for name in ("e", "sub", "sup"))
    indices = (f"_{sub}" if sub else "") + (f"^{sup}" if sup else "")
    if kind == "f":
        return f"{first.get('num', '')}/{first.get('den', '')}"
    if kind in ("sSup", "sSub", "sSubSup"):
        return base + indices
    if kind == "sPre":
        return indices + base
    if kind == "rad":
        degree = first.get("deg", "")
        return f"root({base},{degree})" if degree else f"√{base}"
    if kind == "nary":
        sign = _property(element, "naryPr", "chr", "∫")
        return f"{sign}{indices} {''.join(parts.get('e', []))}"
    if kind == "d":
        begin, between, end = (
            _property(element, "dPr", name, usual)
            for name, usual in (("begChr", "("), ("sepChr", "|"), ("endChr", ")"))
        )
        return f"{begin}{between.join(parts.get('e', []))}{end}"
    if kind == "mr":
        return " ".join(parts.get("e", []))
    if kind in ("m", "eqArr"):
        return "; ".join(parts.get("mr", parts.get("e", [])))
    if kind == "limLow":
        return f"{base}_{first.get('lim', '')}"
    if kind == "limUpp":
        return f"{base}^{first.get('lim', '')}"
    if kind == "func":
        return f"{''.join(parts.get('fName', []))} {''.join(parts.get('e', []))}"
    return "".join(whole)


def _property(element: Any, of: str, name: str, usual: str) -> str:
    found = element.find(f"{_MATH}{of}/{_MATH}{name}")
    return usual if found is None else str(found.get(f"{_MATH}val", ""))


def _grouped(text: str) -> str:
    return text if _is_one(text) else f"({text})"


def _is_one(text: str) -> bool:
    """Whether a part needs no parentheses."""
    return len(text.strip()) < 2 or text.strip().isalnum()
