"""What a Word document shows: paragraphs, tables, text boxes and equations, as lines of text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any
from zipfile import ZipFile

from rag_middle.errors import DocumentLoadError
from rag_middle.extras import require
from rag_middle.retrieval.equations import EQUATION, equation_text
from rag_middle.retrieval.scripts import script_end, script_text, set_fraction, touches
from rag_middle.retrieval.symbols import UNKNOWN, property_of_run, run_text, symbol_text

__all__ = ["check_unpacked", "word_blocks", "word_left_out"]

_UNPACKED_BYTES = 256 * 2**20  # unpacked
_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_PARAGRAPH, _TABLE, _ROW, _CELL = (_WORD + tag for tag in ("p", "tbl", "tr", "tc"))
#: What a paragraph shows, wherever it stands: inserted, in a form's field, in a link.
_SHOWN = {
    _WORD + "tab": "\t",
    _WORD + "ptab": "\t",
    _WORD + "br": "\n",
    _WORD + "cr": "\n",
    _WORD + "noBreakHyphen": "-",
}
_TEXT, _SYMBOL, _CHECK_BOX = (_WORD + tag for tag in ("t", "sym", "checkBox"))
_BOX = _WORD + "txbxContent"
_ALIGN = f"{_WORD}rPr/{_WORD}vertAlign"
#: Seen in the line, without text here: a picture, a note's number.
_DRAWING, *_GAPS = (
    _WORD + tag for tag in ("drawing", "pict", "object", "footnoteReference", "endnoteReference")
)
_INLINE = "{http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing}inline"
_COMPATIBILITY = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
_ALTERNATIVES = (_COMPATIBILITY + "Choice", _COMPATIBILITY + "Fallback")
_BLOCKS = (_PARAGRAPH, _TABLE, EQUATION)
#: Of other files, which Word puts in when it opens this one.
_PLACED = (_WORD + "altChunk", _WORD + "subDoc")
_OBJECT = _WORD + "object"
#: Fields that draw what is in their instructions.
_DRAWING_FIELDS = ("EQ", "SYMBOL")
_CHARTS = (
    "{http://schemas.openxmlformats.org/drawingml/2006/chart}chart",
    "{http://schemas.microsoft.com/office/drawing/2014/chartex}chart",
    "{http://schemas.openxmlformats.org/drawingml/2006/diagram}relIds",
)
#: Deleted text, readings above a word (ruby), and the second copy of a drawing's text.
_NOT_SHOWN = (
    _WORD + "del",
    _WORD + "moveFrom",
    _WORD + "rt",
    _COMPATIBILITY + "Fallback",
)


def check_unpacked(parts: ZipFile) -> None:
    """Refuse what needs more memory than its few kilobytes let expect."""
    unpacked = sum(part.file_size for part in parts.infolist())
    if unpacked > _UNPACKED_BYTES:
        raise DocumentLoadError(
            f"it unpacks to {unpacked / 2**20:.0f} MiB, above the limit of "
            f"{_UNPACKED_BYTES / 2**20:.0f} MiB. Save it without pictures, or remove it."
        )


def word_blocks(document: Any) -> Iterator[tuple[str, bool]]:
    """Texts in their order, and whether each is a heading.

    Not by python-docx's own ``text``, which leaves out insertions, content controls, simple fields
    and tables within tables.
    """
    _whole_texts(document.element)
    is_heading, by_default = _headings(document)
    _place_scripts(document)
    for block in _within(document.element.body, *_BLOCKS):
        for part, text in _texts(block):
            if text.strip():
                is_paragraph = part.tag == _PARAGRAPH
                yield text, is_paragraph and is_heading.get(part.style, by_default)


def _whole_texts(root: Any) -> None:
    """Take out comments and processing instructions, behind which lxml's ``text`` ends.

    Raises:
        DocumentLoadError: there are entities, which no word processor writes; they are not opened.
    """
    etree = require("lxml.etree", package="lxml", what="Reading Word documents")
    if next(root.iter(etree.Entity), None) is not None:
        raise DocumentLoadError(
            "its text has entities of XML, which are not read. Open it in a word processor and "
            "save it again as .docx."
        )
    etree.strip_tags(root, etree.Comment, etree.ProcessingInstruction)


def _headings(document: Any) -> tuple[dict[str | None, bool], bool]:
    """Whether a paragraph is a heading, by the id of its style; and whether one without style is.

    Looked up once: python-docx goes through all styles for every paragraph.
    """
    headings: dict[str | None, bool] = {}
    by_default = False
    for style in document.styles.element.iterchildren(_WORD + "style"):
        if style.get(_WORD + "type", "paragraph") != "paragraph":
            continue
        name = getattr(style.find(_WORD + "name"), "val", None) or ""
        is_heading = name == "Title" or name.startswith(("Heading", "heading "))
        headings.setdefault(style.get(_WORD + "styleId"), is_heading)
        if style.get(_WORD + "default") in ("1", "true", "on"):
            by_default = is_heading
    return headings, by_default


def word_left_out(body: Any) -> Iterator[str]:
    """What the text of a Word document lacks."""
    unknown = sum(
        (symbol_text(part) if part.tag == _SYMBOL else run_text(part)).count(UNKNOWN)
        for part in body.iter(_SYMBOL, _TEXT)
    )
    if unknown:
        yield (
            f"{unknown} symbols of it stand as {UNKNOWN} in its text: what they show depends on "
            "their font. Write them as ordinary characters."
        )
    placed = sum(1 for _ in body.iter(*_PLACED))
    if placed:
        yield (
            f"{placed} files that stand within it are not read. Open it in a word processor and "
            "save it again, which puts their text in."
        )
    charts = sum(1 for _ in _within(body, *_CHARTS))
    if charts:
        yield (
            f"{charts} charts and diagrams (SmartArt) within it are not read. Write what they say "
            "as text."
        )

    objects = sum(1 for _ in _within(body, _OBJECT))
    if objects:
        yield (
            f"{objects} embedded objects (equations of MathType, sheets, ...) within it are not "
            "read. Write what they say as text, or equations as those of Word."
        )
    instructions = [str(part.text or "") for part in body.iter(_WORD + "instrText")]
    instructions += [part.get(_WORD + "instr", "") for part in body.iter(_WORD + "fldSimple")]
    fields = sum(1 for text in instructions if text.strip().startswith(_DRAWING_FIELDS))
    fields += sum(1 for _ in body.iter(_WORD + "ddList"))
    if fields:
        yield (
            f"{fields} fields (EQ, SYMBOL, lists to choose from) within it are not read. Write "
            "what they show as text."
        )


def _place_scripts(document: Any) -> None:
    """Raise and lower runs by themselves whose styles do."""
    own: dict[str, str] = {}
    based: dict[str, str] = {}
    for style in document.styles.element.iterchildren(_WORD + "style"):
        name = style.get(_WORD + "styleId", "")
        align, parent = style.find(_ALIGN), style.find(_WORD + "basedOn")
        if align is not None:
            own[name] = align.get(_WORD + "val", "")
        if parent is not None:
            based[name] = parent.get(_WORD + "val", "")
    if not own:
        return

    def align_of(properties: Any, kind: str) -> str:
        chosen = None if properties is None else properties.find(_WORD + kind)
        name = "" if chosen is None else chosen.get(_WORD + "val", "")
        seen: set[str] = set()
        while name and name not in own and name not in seen:
            seen.add(name)
            name = based.get(name, "")
        align = own.get(name, "")
        own.update(dict.fromkeys(seen, align))  # a chain of styles is followed once
        return align

    of_paragraphs = [""]  # of those around a run: text boxes stand in paragraphs
    etree = require("lxml.etree", package="lxml", what="Reading Word documents")
    steps = etree.iterwalk(document.element.body, ("start", "end"), (_PARAGRAPH, _WORD + "r"))
    for event, element in steps:
        if element.tag == _PARAGRAPH:
            if event == "end":
                of_paragraphs.pop()
            else:
                of_paragraphs.append(align_of(element.find(_WORD + "pPr"), "pStyle"))
        elif event == "start" and element.find(_ALIGN) is None:
            align = align_of(element.find(_WORD + "rPr"), "rStyle") or of_paragraphs[-1]
            if align in ("superscript", "subscript"):
                element.get_or_add_rPr().get_or_add_vertAlign().set(_WORD + "val", align)


def _texts(block: Any) -> Iterator[tuple[Any, str]]:
    """A block with its text, then those of the text boxes that stand at it."""
    if block.tag == EQUATION:
        yield block, equation_text(block, _NOT_SHOWN)
    elif block.tag == _PARAGRAPH:
        boxes: list[Any] = []
        yield block, _line(_parts(block, boxes))
        for box in boxes:
            for inner in _within(box, *_BLOCKS):
                yield from _texts(inner)
    else:
        rows = (
            " | ".join(
                " ".join(
                    text.strip() for inner in _within(cell, *_BLOCKS) for _, text in _texts(inner)
                ).strip()
                for cell in _within(row, _CELL)
            )
            for row in _within(block, _ROW)
        )
        yield block, "\n".join(rows)


def _parts(paragraph: Any, boxes: list[Any]) -> Iterator[tuple[str, str]]:
    """The texts of a paragraph, each with what it is. Its text boxes go to `boxes`."""
    tags = (_TEXT, _SYMBOL, _CHECK_BOX, EQUATION, _BOX, _DRAWING, *_GAPS, *_SHOWN)
    for part in _within(paragraph, *tags):
        if part.tag == _BOX:
            boxes.append(part)
        elif part.tag == EQUATION:
            yield equation_text(part, _NOT_SHOWN), "equation"
        elif part.tag == _DRAWING or part.tag in _GAPS:
            boxes.extend(_within(part, _BOX))
            # One that floats is elsewhere than the character at which it is kept.
            styles = (str(shape.get("style", "")) for shape in part)
            floats = part.find(_INLINE) is None if part.tag == _DRAWING else False
            if not floats and not any("position:absolute" in style for style in styles):
                yield "", "gap"
        else:
            yield _shown(part), _vertical(part)


def _shown(part: Any) -> str:
    if part.tag == _TEXT:
        return run_text(part)
    if part.tag == _SYMBOL:
        return symbol_text(part)
    if part.tag == _CHECK_BOX:
        state = part.find(_WORD + "checked")
        state = part.find(_WORD + "default") if state is None else state
        is_checked = state is not None and state.get(_WORD + "val", "1") in ("1", "true", "on")
        return "☒" if is_checked else "☐"
    return _SHOWN[part.tag]


def _vertical(part: Any) -> str:
    """``superscript``, ``subscript`` or nothing: where the run of a text stands."""
    align = property_of_run(part.getparent(), "vertAlign")
    return "" if align is None else str(align.get(_WORD + "val", ""))


def _line(parts: Iterable[tuple[str, str]]) -> str:
    """The text of a paragraph from its texts, each with what it is."""
    line: list[str] = []
    kept = ""
    for kind, group in groupby(parts, key=itemgetter(1)):
        text = "".join(part for part, _ in group)
        if kind == "gap":
            kept = "word"
            continue
        if not text:
            continue
        before = "".join(piece[-2:] for piece in line[-2:])[-2:]
        if kind in ("superscript", "subscript"):
            raised = kind == "superscript"
            written = script_text(text, before, raised=raised)
            ends = script_end(text, written, before[-1:], raised=raised)
            if not raised:
                set_fraction(line, len(line), text)
        else:
            written, ends = text, "word" if kind == "equation" else ""
        is_apart = kind == "equation" or kept == "word" or (kept and text[:1].isdigit())
        if is_apart and touches(before, written):
            line.append(" ")
        line.append(written)
        kept = ends
    return "".join(line)


def _within(element: Any, *tags: str) -> Iterator[Any]:
    """The nearest elements of these tags below an element, in order."""
    for child in element:
        if child.tag in tags:
            yield child
        elif child.tag == _COMPATIBILITY + "AlternateContent":
            if (choice := next(child.iterchildren(*_ALTERNATIVES), None)) is not None:
                yield from _within(choice, *tags)
        elif child.tag not in _NOT_SHOWN:
            yield from _within(child, *tags)
