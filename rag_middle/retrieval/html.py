"""Plain text of HTML pages."""

from __future__ import annotations

import re
from html.parser import HTMLParser

__all__ = ["html_text"]

_UNSEEN = frozenset({"script", "style", "noscript", "template", "svg", "math", "head"})
_BLOCK = re.compile(
    "address|article|aside|blockquote|br|d[dlt]|details|dialog|div|fieldset|figcaption|figure|"
    "footer|form|h[1-6]|header|hr|li|main|nav|ol|p|pre|section|summary|table|t(body|d|foot|h|head|r)"
    "|ul"
)
_SPACES = re.compile(r"[^\S\n]+")
_KEPT_SPACE = "\x00"  # stands for a space of preformatted text; no page holds it
_BLANK_LINES = re.compile(r"\n{3,}")


def html_text(page: str) -> tuple[str | None, str]:
    """The title and the visible text of a page.

    The title is that of ``<title>``, else the first ``<h1>``. Blocks stand on lines of their own;
    scripts, styles and the like are left out.
    """
    reader = _Reader()
    reader.feed(page)
    reader.close()
    lines = [_SPACES.sub(" ", line).strip() for line in "".join(reader.pieces).split("\n")]
    text = _BLANK_LINES.sub("\n\n", "\n".join(lines)).strip().replace(_KEPT_SPACE, " ")
    title = " ".join("".join(reader.title).split()) or " ".join("".join(reader.heading).split())
    return title or None, text


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self.title: list[str] = []
        self.heading: list[str] = []
        self._unseen: list[str] = []  # open elements whose text is not shown, outermost first
        self._preformatted = 0
        self._in_title = False
        self._in_heading = False
        self._headings = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        # A page may leave out </head>; what follows <body> is seen all the same.
        if tag == "body":
            self._unseen.clear()
        elif tag in _UNSEEN:
            self._unseen.append(tag)
        elif tag == "title" and self._unseen in ([], ["head"]):
            self._in_title = not self.title
        elif _BLOCK.fullmatch(tag):
            self.pieces.append("\n\n" if tag == "p" else "\n")
            self._preformatted += tag == "pre"
            if tag == "h1":
                self._headings += 1
                self._in_heading = self._headings == 1

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if _BLOCK.fullmatch(tag):  # <br/>; <svg/> opens nothing
            self.pieces.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._unseen:
            del self._unseen[self._unseen.index(tag) :]
        elif tag == "title":
            self._in_title = False
        elif _BLOCK.fullmatch(tag):
            self.pieces.append("\n")
            self._preformatted -= tag == "pre" and self._preformatted > 0
            if tag == "h1":
                self._in_heading = False

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title.append(data)
        elif not self._unseen:
            if self._in_heading:
                self.heading.append(data)
            self.pieces.append(
                data.replace(" ", _KEPT_SPACE) if self._preformatted else data.replace("\n", " ")
            )
