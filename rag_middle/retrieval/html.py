"""Plain text of HTML pages.

The pages are anybody's. Python's own parser needs time that grows with the square of a page and
more (``"<a " * 20_000``: minutes) and stops at some (``"<![x"``: an AssertionError); this one looks
at every character once or twice and reads whatever there is.
"""

from __future__ import annotations

import re
from collections import deque
from enum import Enum, auto
from html import unescape

from rag_middle.retrieval.equations import MathText
from rag_middle.retrieval.scripts import script_end, script_text, set_fraction, touches

__all__ = ["html_text"]

#: "annotation": an equation once more, in another notation.
_HIDDEN = frozenset(
    {
        "script",
        "style",
        "noscript",
        "iframe",
        "noembed",
        "template",
        "svg",
        "head",
        "annotation",
        "annotation-xml",
    }
)
#: Any other element ends the head, whose end tag may be left out.
_IN_HEAD = frozenset(
    {"base", "basefont", "bgsound", "head", "html", "link", "meta", "noframes", "noscript"}
    | {"script", "style", "template", "title"}
)
_IN_PICTURE = ("text", "title", "desc", "foreignobject")
#: Elements of pictures that hold HTML.
_HTML_IN_PICTURE = ("title", "desc", "foreignobject")
_NEW_LINE = re.compile(r"\s(?:x|y|dx|dy)\s*=")  # of a part of a picture's text
_BLOCK = re.compile(
    "address|article|aside|blockquote|br|caption|center|d[dlt]|details|dialog|div|fieldset"
    "|figcaption|figure|footer|form|h[1-6]|header|hr|legend|li|main|menu|nav|ol|optgroup|option|p"
    "|plaintext|pre|search|section|summary|table|t(body|d|foot|h|head|r)|ul|xmp"
)
#: Besides blocks and <body>, what ends a picture that was not closed (HTML, "foreign content").
_ENDS_PICTURE = re.compile(
    "b|big|code|em|embed|i|img|listing|meta|nobr|ruby|s|small|span|strike|strong|su[bp]|tt|u|var"
)
_MARKUP = re.compile(r"<(?:!--|[!?]|(/)?([a-zA-Z][^\s/>]*))")
_TAG_PART = re.compile(r">|=\s*([\"'])")
#: Elements of equations that mean something here, as XHTML writes them: with a prefix.
_PREFIXED = re.compile(
    "[^:]+:(annotation(?:-xml)?|math|m(?:frac|fenced|multiscripts|over|prescripts|root|sqrt|sub"
    "|subsup|sup|table|td|tr|under|underover))"
)
#: Elements without elements in them: what looks like a tag is code, or text.
_RAW = {
    name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE)
    for name in ("script", "style", "iframe", "noembed", "textarea", "title", "xmp")
}
_CODE = ("script", "style")
_DATA, _DATA_END = "<![CDATA[", "]]>"  # text, in a picture or an equation
_COMMENT_END = re.compile("--!?>")
_HUGE_REFERENCE = re.compile(r"&#(?:[0-9]{8,}|[xX][0-9a-fA-F]{7,});?")  # no character has one
_SPACES = re.compile(r"[^\S\n]+")
_MAX_HIDDEN = 100
_PREFORMATTED = ("plaintext", "pre", "xmp")
_READING = ("rt", "rp", "rtc")
_RUBY = ("ruby", "rb")
_KEPT_SPACE = "\x00"  # stands for a space of preformatted text; no page holds it
_BLANK_LINES = re.compile(r"\n{3,}")
_MAX_SCRIPTS = 8  # open ones; the text of each is joined at its end


class _Apart(Enum):
    """Which characters must not touch what stands before them: those of another number or word."""

    NONE = auto()
    DIGITS = auto()
    ALL = auto()


def html_text(page: str) -> tuple[str | None, str]:
    """The title and the visible text of a page.

    The title is that of ``<title>``, else the first ``<h1>``. Blocks stand on lines of their own;
    scripts, styles, readings above words (``<ruby>``) and the like are left out. Equations
    (MathML) stand in the line, as do titles and texts of pictures (SVG).
    """
    reader = _Reader()
    reader.feed(page)
    lines = [_SPACES.sub(" ", line).strip() for line in "".join(reader.pieces).split("\n")]
    text = _BLANK_LINES.sub("\n\n", "\n".join(lines)).strip().replace(_KEPT_SPACE, " ")
    title = " ".join("".join(reader.title).split()) or " ".join("".join(reader.heading).split())
    return title or None, text


class _Page:
    """Searches a page. A string that was not found once is not searched for again."""

    _TAG = "the end of a tag"

    def __init__(self, text: str) -> None:
        self.text = text
        self._absent: set[str] = set()

    def after(self, end: str, start: int) -> int | None:
        """The index after the next `end`; None where there is none."""
        if end in self._absent:
            return None
        index = self.text.find(end, start)
        if index < 0:
            self._absent.add(end)
            return None
        return index + len(end)

    def first(self, end: re.Pattern[str], start: int) -> re.Match[str] | None:
        """The next match; None where there is none."""
        if end.pattern in self._absent:
            return None
        found = end.search(self.text, start)
        if found is None:
            self._absent.add(end.pattern)
        return found

    def after_markup(self, opened: re.Match[str]) -> int | None:
        """The index after a tag, comment, declaration or instruction; None where it has no end."""
        end = self.after_tag(opened.end()) if opened.group(2) else None
        if end is not None:
            return end
        if opened.group() == "<!--":
            for empty in (">", "->"):  # <!--> and <!---> are whole
                if self.text.startswith(empty, opened.end()):
                    return opened.end() + len(empty)
            closed = self.first(_COMMENT_END, opened.end())
            return closed.end() if closed else None
        return self.after(">", opened.end())

    def after_tag(self, start: int) -> int | None:
        """The index after the ``>`` of a tag; one inside a quoted value ends nothing.

        None where there is none, and from then on: quotes are not distinguished any longer.
        """
        while self._TAG not in self._absent and (mark := _TAG_PART.search(self.text, start)):
            quote = mark.group(1)
            start = mark.end()
            if quote is None:
                return start
            # A value whose quote is never closed is read as one without quotes.
            start = self.after(quote, start) or start
        self._absent.add(self._TAG)
        return None


class _Reader:
    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.title: list[str] = []
        self.heading: list[str] = []
        self._hidden: list[str] = []  # open elements whose text is not shown, outermost first
        self._preformatted = 0
        self._in_title = False
        self._in_heading = False
        self._headings = 0
        self._in_picture = ""  # the element whose text is shown
        self._math: MathText | None = None
        #: The open <sup> and <sub>, and where they began.
        self._scripts: deque[tuple[str, int]] = deque(maxlen=_MAX_SCRIPTS)
        self._apart = _Apart.NONE
        self._rubies = 0  # open ones
        self._in_reading = False  # above a word
        self._katex = False  # which writes each equation twice: MathML, and text that is shown

    def feed(self, text: str) -> None:
        """Read a whole page."""
        page = _Page(text)
        start = 0
        # Each from where the last one ended: a script's ``i<n</script>`` looks like one tag.
        while opened := _MARKUP.search(text, start):
            in_foreign = self._math is not None or "svg" in self._hidden
            is_data = in_foreign and text.startswith(_DATA, opened.start())
            end = page.after(_DATA_END, opened.end()) if is_data else None
            is_data = end is not None
            if end is None:
                end = page.after_markup(opened)
            if end is None:
                break  # never closed: the rest is text
            if start < opened.start():
                self._text(text[start : opened.start()])
            start = end
            if is_data:
                begin = opened.start() + len(_DATA)
                self._text(text[begin : end - len(_DATA_END)], raw=True)
                continue
            name = (opened.group(2) or "").lower()
            if prefixed := _PREFIXED.fullmatch(name):
                name = prefixed.group(1)
            if self._hidden or self._math:
                self._leave_foreign(name)
                in_foreign = in_foreign and (self._math is not None or "svg" in self._hidden)
            if opened.group(1):
                self._end(name)
            elif name and text.endswith("/>", 0, end):
                if self._math:
                    self._math.begin(name)
                    self._math.end(name)
                elif _BLOCK.fullmatch(name):  # <br/>; <svg/> opens nothing
                    self.pieces.append("\n")
            elif name == "plaintext" and not in_foreign:
                self._begin(name, "")
                self._text(text[end:], raw=True)
                start = len(text)
                break
            elif name in _RAW and (name in _CODE or not in_foreign):
                stop = page.first(_RAW[name], end)
                if stop is None and name in _CODE:
                    start = len(text)
                    break
                if stop is not None:  # else its text goes on like any other, and is no title
                    self._begin(name, text[opened.end() : end])
                    self._text(text[end : stop.start()], raw=name == "xmp")
                    start = stop.start()
            elif name:
                self._begin(name, text[opened.end() : end])
        self._text(text[start:])
        self._end_math()

    def _leave_foreign(self, tag: str) -> None:
        """End what browsers end before this tag: a picture or an equation that was not closed."""
        is_block = tag == "body" or _BLOCK.fullmatch(tag) is not None
        if is_block:
            self._end_math()
        elif not _ENDS_PICTURE.fullmatch(tag):
            return
        if self._in_picture in _HTML_IN_PICTURE or "annotation-xml" in self._hidden:
            return  # which hold HTML
        # In equations only blocks: <mtext><b> is one's text.
        ended = ("svg", "math", "annotation") if is_block else ("svg",)
        begun = [self._hidden.index(name) for name in ended if name in self._hidden]
        if begun:
            del self._hidden[min(begun) :]
            self._katex = False
            if self._in_picture:
                self._in_picture = ""
                self.pieces.append(" ")

    def _begin(self, tag: str, attributes: str) -> None:
        if tag in _READING or tag in _RUBY or tag == "body" or _BLOCK.fullmatch(tag):
            self._in_reading = tag in _READING and self._rubies > 0
        if self._hidden == ["head"] and tag not in _IN_HEAD:
            self._hidden.clear()
        # A page may leave out </head>; what follows <body> is seen all the same.
        if tag == "body":
            self._hidden.clear()
            self._in_picture = ""
        elif tag == "math" and not self._math and self._shows():
            if self._katex:
                self._hidden.append(tag)
            else:
                self._math = MathText()
        elif tag in _IN_PICTURE and self._hidden and self._hidden[-1] == "svg":
            if not self._in_picture:
                self._in_picture = tag
                self.pieces.append(" ")
        elif tag == "tspan" and self._in_picture and _NEW_LINE.search(attributes):
            self.pieces.append(" ")
        elif self._math and tag not in _HIDDEN:
            self._math.begin(tag, attributes)
        elif tag in ("sup", "sub") and self._shows():
            self._scripts.append((tag, len(self.pieces)))
        elif tag == "ruby":
            self._rubies += self._shows()
        elif tag == "span":
            self._katex = self._katex or "katex-mathml" in attributes
        elif tag in _HIDDEN:
            if len(self._hidden) < _MAX_HIDDEN:  # which is searched at every end tag
                self._hidden.append(tag)
        elif tag == "title" and self._hidden in ([], ["head"]):
            self._in_title = not self.title
        elif _BLOCK.fullmatch(tag):
            self.pieces.append("\n\n" if tag == "p" else "\n")
            self._preformatted += tag in _PREFORMATTED
            if tag == "h1" and self._shows():
                self._headings += 1
                self._in_heading = self._headings == 1

    def _end(self, tag: str) -> None:
        if tag == "math" and self._math:
            self._end_math()
            if "annotation" in self._hidden:  # </annotation> was left out
                del self._hidden[self._hidden.index("annotation") :]
        if tag in _READING or tag == "ruby" or _BLOCK.fullmatch(tag):
            self._in_reading = False
        if tag == "ruby":
            self._rubies = max(self._rubies - 1, 0)
        if tag in self._hidden:
            if tag == "template":  # the innermost; of others an end tag may have been left out
                self._hidden.reverse()
                del self._hidden[: self._hidden.index(tag) + 1]
                self._hidden.reverse()
            else:
                del self._hidden[self._hidden.index(tag) :]
            self._katex = self._katex and tag != "math"
            if self._in_picture and "svg" not in self._hidden:
                self._in_picture = ""
                self.pieces.append(" ")
        elif tag == self._in_picture:
            self._in_picture = ""
            self.pieces.append(" ")
        elif self._math:
            self._math.end(tag)
        elif any(tag == open_tag for open_tag, _ in self._scripts):
            self._end_script(tag)
        elif tag == "title":
            self._in_title = False
        elif _BLOCK.fullmatch(tag):
            self.pieces.append("\n")
            self._preformatted -= tag in _PREFORMATTED and self._preformatted > 0
            if tag == "h1":
                self._in_heading = False

    def _end_math(self) -> None:
        if self._math:
            equation, self._math = self._math.close(), None
            if equation:
                self._apart = _Apart.ALL
                self._add(equation)
                self._apart = _Apart.ALL

    def _end_script(self, tag: str) -> None:
        opened = ""
        while opened != tag:  # of those within it the end was left out
            opened, begin = self._scripts.pop()
        if begin >= len(self.pieces):
            return
        raised, pieces = tag == "sup", self.pieces
        text = "".join(pieces[begin:])
        before = "".join(piece[-2:] for piece in pieces[max(begin - 2, 0) : begin])[-2:]
        written = script_text(text, before, raised=raised)
        if not raised:
            set_fraction(pieces, begin, text)
        pieces[begin:] = [written]
        ends = script_end(text, written, before[-1:], raised=raised)
        self._apart = {"word": _Apart.ALL, "number": _Apart.DIGITS}.get(ends, _Apart.NONE)

    def _add(self, text: str) -> None:
        """Add text to the line, after a space where it is apart and would touch the last."""
        if not text:
            return
        is_apart = self._apart is _Apart.ALL or (self._apart is _Apart.DIGITS and text[0].isdigit())
        if is_apart and self.pieces and touches(self.pieces[-1], text):
            self.pieces.append(" ")
        self.pieces.append(text)
        self._apart = _Apart.NONE

    def _shows(self) -> bool:
        """Whether text here is to be seen: in a picture, that of its labels."""
        if self._in_reading:
            return False
        if not self._hidden:
            return True
        return bool(self._in_picture) and self._hidden[0] == self._hidden[-1] == "svg"

    def _text(self, text: str, *, raw: bool = False) -> None:
        data = text if raw else unescape(_HUGE_REFERENCE.sub("\ufffd", text))
        if self._hidden == ["head"] and not self._in_title and data.strip():
            self._hidden.clear()
        if self._in_title:
            self.title.append(data)
        elif not self._shows():
            return
        elif self._math:
            self._math.text(data)
        else:
            if self._in_heading:
                self.heading.append(data)
            self._add(
                data.replace(" ", _KEPT_SPACE) if self._preformatted else data.replace("\n", " ")
            )
