"""Characters of Word's symbol fonts, whose codes say nothing without the font.

Insert > Symbol writes ``<w:sym w:font="Symbol" w:char="F06D"/>``, or the character U+F06D in a run
of that font: a µ. Symbol is whole, as Adobe encodes it; of the pictures of Wingdings and Webdings
those that mean something in a text.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Any

__all__ = ["UNKNOWN", "property_of_run", "run_text", "symbol_text"]

UNKNOWN = "\ufffd"
"""Stands for a symbol that is not known."""

_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_CODED = re.compile("[\uf000-\uf0ff]")
_PROPERTIES_WITHIN = 4  # children of a run; in an equation its own properties stand before them
_MOST_PROPERTIES = 100  # Word has forty


def _rows(rows: str, *, first: int) -> dict[int, str]:
    """Codes from `first` on, sixteen to a row; a dot is a code without a character."""
    codes = "".join(row.strip() for row in rows.splitlines() if row.strip())
    return {first + at: character for at, character in enumerate(codes) if character != "."}


_SYMBOL = {0x20: " ", 0x2E: "."} | _rows(
    """
    .!∀#∃%&∋()∗+,−./
    0123456789:;<=>?
    ≅ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟ
    ΠΘΡΣΤΥςΩΞΨΖ[∴]⊥_
    ‾αβχδεφγηιϕκλμνο
    πθρστυϖωξψζ{|}∼.
    ................
    ................
    €ϒ′≤⁄∞ƒ♣♦♥♠↔←↑→↓
    °±″≥×∝∂•÷≠≡≈…⏐⎯↵
    ℵℑℜ℘⊗⊕∅∩∪⊃⊇⊄⊂⊆∈∉
    ∠∇®©™∏√⋅¬∧∨⇔⇐⇑⇒⇓
    ◊〈®©™∑⎛⎜⎝⎡⎢⎣⎧⎨⎩⎪
    .〉∫⌠⎮⌡⎞⎟⎠⎤⎥⎦⎫⎬⎭.
    """,
    first=0x20,
)
_WINGDINGS = {0x20: " "} | _rows(
    """
    .✏✂✁......☎✆✉✉..
    ......⌛⌨......✇✍
    .✌.👍👎☜☞☝☟✋☺😐☹💣☠⚐
    .✈☼.❄.✞.✠✡☪☯.☸♈♉
    ♊♋♌♍♎♏♐♑♒♓&&●❍■□
    □❑❒⬧⧫◆❖⬥☒.⌘....▯
    ⓪①②③④⑤⑥⑦⑧⑨⑩⓿❶❷❸❹
    ❺❻❼❽❾❿........∙•
    ▪○○○◉◎○▪☐.✦★✶✴✹✵
    .⌖...✪✰🕐🕑🕒🕓🕔🕕🕖🕗🕘
    🕙🕚🕛.............
    .....⌫⌦.➢...➲..←
    →↑↓↖↗↙↘←➔↑↓↖↗↙↘⇦
    ⇨⇧⇩⬄⇳⬁⬀⬃⬂▭▫✗✓☒☑.
    """,
    first=0x20,
)
_TABLES = {
    "symbol": _SYMBOL,
    "wingdings": _WINGDINGS,
    "wingdings 2": {0x20: " "} | _rows("✗✓☒☑☒⊗", first=0x4F) | _rows("■☐", first=0xA2),
    "wingdings 3": {0x20: " "} | _rows("←→↑↓", first=0x21) | _rows("▲▼△▽◀▶◁▷", first=0x70),
    "webdings": {0x20: " ", 0x61: "✔", 0x63: "□", 0x67: "■", 0x6E: "●", 0x72: "✗"}
    | _rows("◀▶▲▼", first=0x33),
}


def symbol_text(symbol: Any) -> str:
    """The character of a ``w:sym`` element, or `UNKNOWN`."""
    font = str(symbol.get(_WORD + "font", ""))
    try:
        code = int(str(symbol.get(_WORD + "char", "")), 16)
        if font.casefold() in _TABLES and (code < 0x100 or _CODED.match(chr(code))):
            return _TABLES[font.casefold()].get(code & 0xFF, UNKNOWN)
        character = chr(code)
    except (ValueError, OverflowError):
        return UNKNOWN
    if character.isspace():
        return " "
    return character if character.isprintable() else UNKNOWN  # not of private use


def property_of_run(run: Any, name: str) -> Any:
    """The element of this name in the properties of a run; None where there is none.

    Looked for at the beginning only, where Word writes them: a run may hold a million texts, each
    of which asks for them.
    """
    for properties in islice(run, _PROPERTIES_WITHIN):
        if properties.tag == f"{_WORD}rPr":
            within = islice(properties, _MOST_PROPERTIES)
            return next((child for child in within if child.tag == _WORD + name), None)
    return None


def run_text(text: Any) -> str:
    """The text of a ``w:t`` or ``m:t`` element, as the font of its run shows it."""
    written = str(text.text or "")
    if not _CODED.search(written):
        return written
    fonts = property_of_run(text.getparent(), "rFonts")
    names = () if fonts is None else (fonts.get(_WORD + kind, "") for kind in ("ascii", "hAnsi"))
    tables = [_TABLES[name.casefold()] for name in names if name.casefold() in _TABLES]
    if not tables:
        return written
    return _CODED.sub(lambda coded: tables[0].get(ord(coded[0]) & 0xFF, UNKNOWN), written)
