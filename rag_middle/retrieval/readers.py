"""Documents from a file or a folder, and a report of what was left out.

Text stays as it is, whatever it holds: document markers and control tokens are made harmless where
a prompt is built, not here.
"""

from __future__ import annotations

import codecs
import csv
import json
import logging
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, time
from io import BytesIO, StringIO
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from rag_middle.documents import Document
from rag_middle.errors import FileFormatError, RagMiddleError
from rag_middle.extras import require
from rag_middle.files import file_sha256
from rag_middle.plain_data import parse_json, whole_characters
from rag_middle.wording import listed

MANIFEST = "manifest.json"
"""Names the files of a saved index, and what it was made of."""


class Skipped(NamedTuple):
    """Something that was not loaded: the file, or file and line, why, and what to do about it."""

    source: str
    reason: str

    def __str__(self) -> str:
        return f"{self.source}: {self.reason}"


class Loaded(NamedTuple):
    """The result of :func:`load`: documents in order of their sources, and what was left out."""

    documents: tuple[Document, ...]
    skipped: tuple[Skipped, ...]


def load(path: str | Path) -> Loaded:
    """Read every document in a file or folder; of other formats than plain text, as Markdown.

    In a folder, what cannot be read is skipped and reported: other suffixes, binary or damaged
    files, and documents met before under another name. Hidden files and folders, links and saved
    indexes are passed over.

    Returns:
        Documents under the title that the file states, else its name. `metadata` has the
        ``source``, the file relative to the folder, with ``/``; from 1 the ``page`` of a PDF or the
        ``line`` of a ``.jsonl`` file; fields of JSON; and for `split` ``start``, characters of the
        source before the text (a title line), and ``line_numbers``, the line of the file, or row of
        a sheet, from 1, of each line of the text, where a reader could go to them.

    Raises:
        FileFormatError: there is nothing at `path`, a single file cannot be read, or a folder
            holds no document.
        MissingExtraError: a format needs a package that is not installed.

    Warns:
        UserWarning: a text is not UTF-8 and declares no encoding: it was read as Windows-1252.
    """
    root = Path(path)
    skipped: list[Skipped] = []
    documents: dict[tuple[str | None, str], Document] = {}
    for source, file in files_in(root):
        for item in _items(source, file):
            if isinstance(item, Document):
                first = documents.setdefault((item.title, item.text), item)
                if first is item:
                    continue
                reason = f"same title and text as {_location(first)}, which is kept."
                item = Skipped(_location(item), reason)
            skipped.append(item)
    if not documents:
        why = [str(entry) for entry in skipped[:5]]
        if len(skipped) > len(why):
            why.append(f"and {len(skipped) - len(why)} more")
        why = why or [f"it is empty. Put there {_SUFFIXES}."]
        raise FileFormatError("\n  ".join([f"There are no documents in {str(root)!r}:", *why]))
    return Loaded(tuple(map(_titled, documents.values())), tuple(skipped))


def file_digests(path: str | Path) -> dict[str, str]:
    """What changes with each file: its sha256 by its source, if it is of a format that is read."""
    digests = {}
    for source, file in files_in(Path(path)):
        digests[source] = "not read"
        if file.suffix.lower() in READERS:
            with suppress(OSError):  # of a file without permission; it is skipped
                digests[source] = file_sha256(file)
    return digests


def check_exists(path: str | Path) -> None:
    """Raise `FileFormatError` where there is nothing at `path`."""
    if not os.path.exists(path):
        raise FileFormatError(
            f"There is no file or folder {str(path)!r}. Check the path ('~' is not expanded)."
        )


def is_index_folder(folder: str | Path) -> bool:
    """Whether an index was saved there, of this or an earlier format."""
    try:
        return b'"rag-middle-index"' in (Path(folder) / MANIFEST).read_bytes()[:200]
    except (OSError, ValueError):
        return False


def files_in(root: Path) -> Iterator[tuple[str, Path]]:
    """Every file in order, with its source."""
    check_exists(root)
    if not root.is_dir():
        yield whole_characters(root.name), root
        return
    for path in sorted(root.rglob("*"), key=Path.as_posix):
        relative = path.relative_to(root)
        is_hidden = any(part.startswith(".") for part in relative.parts)
        is_own = path.is_file() and not path.is_symlink()  # links may lead out of the folder
        if is_own and not is_hidden and not is_index_folder(path.parent):
            yield whole_characters(relative.as_posix()), path  # names may hold bytes of no text


def _items(source: str, file: Path) -> Iterator[Document | Skipped]:
    read = READERS.get(file.suffix.lower())
    if read is None:
        yield Skipped(source, f"{file.suffix!r} is not read. Read are {_SUFFIXES}.")
        return
    try:
        reason = "it holds no text. Fill it or remove it."
        for item in read(file.read_bytes(), source):
            if isinstance(item, Skipped) or item.text.strip():
                yield item
                reason = ""
    except FileFormatError as error:
        reason = str(error)
    except (RagMiddleError, Warning):
        raise
    except Exception as error:  # of a library: a damaged file must not stop the others
        reason = (
            f"it cannot be read ({type(error).__name__}: {error!s:.200}). Correct or remove it."
        )
    if reason:
        yield Skipped(source, reason)


def _titled(document: Document) -> Document:
    """The document under the name of its file where it has no title, so that it can be cited."""
    line = document.metadata.get("line")
    title = _name(document.metadata["source"]) + (f", line {line}" if line else "")
    return replace(document, title=document.title or title)


def _name(source: str) -> str:
    stem = PurePosixPath(source).stem
    return " ".join(re.split(r"[\s_-]+", stem)).strip() or stem


def _location(document: Document) -> str:
    source = str(document.metadata["source"])
    number = document.metadata.get("line") or document.metadata.get("page")
    return f"{source}:{number}" if number else source


# -- Text ----------------------------------------------------------------------------------------

_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",  # begins as that of UTF-16 does
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_DECLARED = re.compile(rb"(?:charset|coding)\s*[=:]\s*[\"']?([\w.:-]+)")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1a]")
# Front matter and code, where # begins a comment, then headings: # Lyon, or Lyon over a line.
# The line end before them comes first: re searches for a letter many times as quickly as for ^.
_HEADING = re.compile(
    r"\n(?:(?<=\A\n)---\n[\s\S]*?\n---$|(?:```|~~~)[\s\S]*?\n(?:```|~~~)"
    r"|#{1,6}[ \t]+(.*)$|([\w`].*)\n(?:[=\-^\"]{3,}|~{4,})[ \t]*$)",
    re.MULTILINE,
)
_FRONT_MATTER_TITLE = re.compile(r"---\n(?:.+\n)*?title:(.*)\n")


def _decoded(content: bytes, source: str) -> str:
    """Text with ``\\n`` line ends, in UTF-8 or what it declares, else Windows-1252."""
    marks = (name for mark, name in _BYTE_ORDER_MARKS.items() if content.startswith(mark))
    try:
        text = content.decode(next(marks, "utf-8-sig"))
        is_binary = "\x00" in text
    except UnicodeDecodeError:
        text = _declared_or_assumed(content, source)
        is_binary = bool(_CONTROL.search(text))
    if is_binary:
        raise FileFormatError("it is binary. Remove it, or give it the suffix of its format.")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _declared_or_assumed(content: bytes, source: str) -> str:
    if declared := _DECLARED.search(content[:1024]):
        with suppress(LookupError):
            return content.decode(declared[1].decode(), "replace")
    text = content.decode("cp1252", "replace")
    if not _CONTROL.search(text):  # else it is binary
        warnings.warn(
            f"{source} is not UTF-8 and names no encoding: it was read as Windows-1252. Where "
            "letters are wrong, save it as UTF-8.",
            stacklevel=2,
        )
    return text


def _read_text(content: bytes, source: str) -> Iterator[Document | Skipped]:
    text = _decoded(content, source)
    has_title = PurePosixPath(source).suffix.lower() not in ("", ".txt")
    document = _with_title(text, source) if has_title else Document(text)
    start = document.metadata.get("start", 0)
    first, last = text[:start].count("\n") + 1, text.count("\n") + 1
    place = {"source": source, "start": start, "line_numbers": [*range(first, last + 1)]}
    yield replace(document, metadata=place)


def _with_title(text: str, source: str, title: str | None = None) -> Document:
    """A text whose first heading is its title, and left out where it opens the text."""
    start = 0
    if first := next(headings(text), None):
        title = title or first[2]
        opens = not text[: first[0]].strip("=-~*#^ \n")  # at most a line above it
        if opens and title == first[2]:
            rest = text[first[1] :].lstrip()
            start = len(text) - len(rest) if rest else 0
    elif named := _FRONT_MATTER_TITLE.match(text):
        title = title or named[1].strip(" \t\"'") or None
    return Document(text[start:], title=title, metadata={"source": source, "start": start})


def headings(text: str) -> Iterator[tuple[int, int, str]]:
    """Start, end and words of the headings of Markdown and reStructuredText, in order."""
    for match in _HEADING.finditer("\n" + text):
        if words := ((match[1] or "").rstrip(" \t#") or match[2] or "").strip():
            yield match.start(), match.end() - 1, words


def _read_json(content: bytes, source: str) -> Iterator[Document | Skipped]:
    """Documents of a list of objects with ``"text"``; other JSON is text."""
    text = _decoded(content, source)
    parsed = parse_json(text)
    items = parsed if isinstance(parsed, list) else [parsed]
    if items and all(isinstance(item, dict) and item.get("text") for item in items):
        yield from (_document(item, source, {}) for item in items)
    else:
        lines = [*range(1, text.count("\n") + 2)]
        yield Document(text, metadata={"source": source, "line_numbers": lines})


def _read_jsonl(content: bytes, source: str) -> Iterator[Document | Skipped]:
    for number, line in enumerate(_decoded(content, source).split("\n"), start=1):
        if line.strip():
            try:
                yield _document(parse_json(line), source, {"line": number})
            except ValueError as error:
                reason = f'{error}. Expected {{"text": "...", "title": "..."}}; correct the line.'
                yield Skipped(f"{source}:{number}", reason)


def _document(fields: Any, source: str, place: Mapping[str, int]) -> Document:
    if not isinstance(fields, dict):
        raise ValueError(f"a line should be an object, got {type(fields).__name__}")
    text, title, more = (fields.pop(name, None) for name in ("text", "title", "metadata"))
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f'"text" should be a text that is not empty, got {text!r:.100}')
    if not isinstance(title, str | None):
        raise ValueError(f'"title" should be a text, got {title!r:.100}')
    metadata = {**fields, **(more if isinstance(more, dict) else {}), **place, "source": source}
    json.dumps(metadata, allow_nan=False)  # an index keeps it
    own = {name: value for name, value in metadata.items() if name not in ("start", "line_numbers")}
    return Document(text, title=title or None, metadata=own)


# -- Tables --------------------------------------------------------------------------------------


def _read_csv(content: bytes, source: str) -> Iterator[Document | Skipped]:
    text = _decoded(content, source)
    header = text.lstrip().split("\n")[0]
    rows = csv.reader(StringIO(text, newline=""), delimiter=max(",;\t|", key=header.count))
    yield from _table(((rows.line_num, row) for row in rows), source)


def _read_sheets(content: bytes, source: str) -> Iterator[Document | Skipped]:
    library = require("openpyxl", package="openpyxl", what="Reading sheets", extra="files")
    for sheet in library.load_workbook(BytesIO(content), read_only=True, data_only=True).worksheets:
        sheet.reset_dimensions()  # which some programs write too small
        yield from _table(
            enumerate(sheet.values, start=1), source, f"{_name(source)}, {sheet.title}"
        )


def _table(
    rows: Iterable[tuple[int, Iterable[Any]]], source: str, title: str | None = None
) -> Iterator[Document]:
    """A table of Markdown, if there are cells; the first row is its header."""
    numbered = [(number, [*map(_cell, row)]) for number, row in rows]
    numbered = [(number, row) for number, row in numbered if any(row)]
    if not numbered:
        return
    width = max(at + 1 for _, row in numbered for at, cell in enumerate(row) if cell)
    numbers = [number for number, _ in numbered]
    lines = [f"| {' | '.join((row + [''] * width)[:width])} |" for _, row in numbered]
    lines.insert(1, f"|{' --- |' * width}")
    numbers.insert(1, numbers[0])
    metadata = {"source": source, "line_numbers": numbers}
    yield Document("\n".join(lines), title=title, metadata=metadata)


def _cell(value: Any) -> str:
    if isinstance(value, datetime) and value.time() == time():
        value = value.date()
    return " ".join(str("" if value is None else value).split()).replace("|", "\\|")


# -- Other formats: as Markdown, by pypdf and by single converters of MarkItDown -----------------


def _read_pdf(content: bytes, source: str) -> Iterator[Document | Skipped]:
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # what it says of a file quotes it
    reader = require("pypdf", package="pypdf", what="Reading PDF").PdfReader(BytesIO(content))
    if reader.is_encrypted and not reader.decrypt(""):
        raise FileFormatError("it is encrypted: save it without a password.")
    title = (reader.metadata and reader.metadata.title) or None
    empty = []
    for number, page in enumerate(reader.pages, start=1):
        text = whole_characters(page.extract_text())
        if text.strip():
            yield Document(text, title=title, metadata={"source": source, "page": number})
        else:
            empty.append(number)
    if empty:
        pages = f"page {empty[0]} holds" if len(empty) == 1 else f"pages {listed(empty)} hold"
        yield Skipped(source, f"{pages} no text (scanned?): run OCR on it.")


def _converted(name: str) -> Callable[[bytes, str], Iterator[Document | Skipped]]:
    """A reader by one converter of MarkItDown: no plugins, nothing fetched."""

    def read(content: bytes, source: str) -> Iterator[Document | Skipped]:
        suffix = PurePosixPath(source).suffix.lower()
        what = f"Reading {suffix} files"
        library = require("markitdown", package="markitdown", what=what, extra="files")
        if name == "HtmlConverter":
            content = _decoded(content, source).encode()
        page = getattr(library.converters, name)().convert(
            BytesIO(content),
            library.StreamInfo(extension=suffix),
            style_map="p[style-name='Title'] => h1:fresh",  # of Word documents
            escape_asterisks=False,  # the names in a text are to be found as they are written
            escape_underscores=False,
            table_infer_header=True,  # the first row, also where its cells are no header cells
        )
        title = " ".join((page.title or "").split()) or None
        yield _with_title(whole_characters(page.markdown), source, title)

    return read


READERS: Mapping[str, Callable[[bytes, str], Iterator[Document | Skipped]]] = {
    **dict.fromkeys(["", ".txt", ".md", ".markdown", ".rst"], _read_text),
    ".pdf": _read_pdf,
    **dict.fromkeys([".html", ".htm", ".xhtml"], _converted("HtmlConverter")),
    ".docx": _converted("DocxConverter"),
    ".pptx": _converted("PptxConverter"),
    ".epub": _converted("EpubConverter"),
    ".xlsx": _read_sheets,
    **dict.fromkeys([".csv", ".tsv"], _read_csv),
    ".json": _read_json,
    ".jsonl": _read_jsonl,
}
"""(content, source) -> documents, by suffix in lower case; a FileFormatError says what is wrong."""

_SUFFIXES = ", ".join(filter(None, READERS)) + ", and text without a suffix"
