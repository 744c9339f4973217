"""Records from a file or a folder, and a report of what was left out.

Text stays as it is, whatever it holds: document markers and control tokens are made harmless where
a prompt is built, not here.
"""

from __future__ import annotations

import csv
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from io import BytesIO, StringIO
from pathlib import Path, PurePosixPath
from typing import Any

from rag_middle.errors import FileFormatError, RagMiddleError
from rag_middle.extras import require
from rag_middle.files import file_sha256
from rag_middle.plain_data import parse_json, whole_characters

MANIFEST = "manifest.json"
"""Names the files of a saved index, and what it was made of."""

_OWN_METADATA = ("source", "start", "end", "line", "score")  # what documents say of themselves
_TABLE_CHARACTERS = 400  # of rows under one header: a table this long is one chunk
_FENCE = r"^(?:```|~~~)[\s\S]*?^(?:```|~~~)"  # code, where # begins a comment
_HEADINGS = {
    ".md": re.compile(rf"{_FENCE}|^#{{1,6}}[ \t]+(.*?)[ \t#]*$|^(\w.*)\n=+[ \t]*$", re.M),
    ".rst": re.compile(r"^(\S.*)\n(?:=+|([\-`:'\"~^_*+#<>.])\2{2,})[ \t]*$", re.M),
}
_FRONT_MATTER_TITLE = re.compile(r"---\n(?:.+\n)*?title:[ \t]*[\"']?(.+?)[\"']?[ \t]*\n")


@dataclass(frozen=True, kw_only=True)
class Record:
    """A text as it was loaded.

    Attributes:
        text: the text; of other formats than plain text, as Markdown.
        source: the file it comes from, relative to the folder that was loaded, with ``/``.
        title: its title, if the file names one; else the name of the file.
        start: characters of the source before the text (a Markdown title line).
        metadata: what else the file says: the page of a PDF (from 1), the line of a ``.jsonl`` or
            ``.csv`` file (from 1), and fields of JSON.
        first_line: line of the file, from 1, that the text begins on; None where the file has no
            lines that a reader could go to.
        headings: offset in the text and words of each heading, in order.
    """

    text: str
    source: str
    title: str | None = None
    start: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)
    first_line: int | None = None
    headings: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Skipped:
    """Something that was not loaded.

    Attributes:
        source: the file, or file and line.
        reason: why, and what to do about it.
    """

    source: str
    reason: str

    def __str__(self) -> str:
        return f"{self.source}: {self.reason}"


@dataclass(frozen=True)
class Loaded:
    """The result of :func:`load`.

    Attributes:
        records: in order of their sources, no two with the same title and text.
        skipped: what was left out, and why.
        files: sha256 of each file by its source, if it is of a format that is read.
    """

    records: tuple[Record, ...]
    skipped: tuple[Skipped, ...]
    files: Mapping[str, str]


def load(path: str | Path) -> Loaded:
    """Read every document in a file or folder.

    In a folder, what cannot be read is skipped and reported: other suffixes, binary or damaged
    files, and records met before under another name. Hidden files and folders, links and saved
    indexes are passed over.

    Raises:
        FileFormatError: there is nothing at `path`, a single file cannot be read, or a folder
            holds no document.
        MissingExtraError: a format needs a package that is not installed.
    """
    root = Path(path)
    skipped: list[Skipped] = []
    records: dict[tuple[str | None, str], Record] = {}
    for source, file in _files(root):
        for item in _items(source, file):
            if isinstance(item, Record):
                first = records.setdefault((item.title, item.text), item)
                if first is item:
                    continue
                reason = f"same title and text as {_location(first)}, which is kept."
                item = Skipped(_location(item), reason)
            skipped.append(item)
    if not records:
        raise _no_documents(root, skipped)
    return Loaded(tuple(map(_titled, records.values())), tuple(skipped), file_digests(root))


def file_digests(path: str | Path) -> dict[str, str]:
    """`Loaded.files`, without reading documents."""
    digests = {}
    for source, file in _files(Path(path)):
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


# -- Formats: bytes in, records out; a FileFormatError says what follows the name of the file ----


def _read_text(content: bytes, source: str) -> Iterator[Record | Skipped]:
    text = _decoded(content)
    suffix = PurePosixPath(source).suffix.lower().replace("markdown", "md")
    record = _under_headings(text, source, _HEADINGS.get(suffix))
    yield replace(record, first_line=text.count("\n", 0, record.start) + 1)


def _under_headings(
    text: str, source: str, pattern: re.Pattern[str] | None, title: str | None = None
) -> Record:
    """The text with its headings; the first is the title, and left out where it opens the text."""
    matches = [] if pattern is None else [it for it in pattern.finditer(text) if it[1] or it[2]]
    headings = [(it.start(), (it[1] or it[2]).strip()) for it in matches]
    start = 0
    is_title = headings and title in (None, headings[0][1])
    if is_title and not text[: headings[0][0]].strip("=-~*#^ \n"):  # at most a line above it
        start = len(text) - len(text[matches[0].end() :].lstrip())
        start = start if start < len(text) else 0
    if title is None and headings:
        title = headings[0][1]
    if title is None and pattern and (named := _FRONT_MATTER_TITLE.match(text)):
        title = named[1]
    inside = tuple((at - start, words) for at, words in headings if at >= start)
    return Record(text=text[start:], source=source, title=title, start=start, headings=inside)


def _read_pdf(content: bytes, source: str) -> Iterator[Record | Skipped]:
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # what it says of a file quotes it
    reader = require("pypdf", package="pypdf", what="Reading PDF").PdfReader(BytesIO(content))
    if reader.is_encrypted and not reader.decrypt(""):
        raise FileFormatError("it is encrypted: save it without a password.")
    title = (reader.metadata and reader.metadata.title) or None
    empty = []
    for number, page in enumerate(reader.pages, start=1):
        text = whole_characters(page.extract_text())
        if text.strip():
            yield Record(text=text, source=source, title=title, metadata={"page": number})
        else:
            empty.append(number)
    if empty:
        reason = f"pages {', '.join(map(str, empty))} hold no text (scanned?): run OCR on it."
        yield Skipped(source, reason)


def _converted(converter: str) -> Callable[[bytes, str], Iterator[Record | Skipped]]:
    """A reader by one converter of MarkItDown: no plugins, nothing fetched."""

    def read(content: bytes, source: str) -> Iterator[Record | Skipped]:
        suffix = PurePosixPath(source).suffix
        what = f"Reading {suffix} files"
        library = require("markitdown", package="markitdown", what=what, extra="files")
        page = getattr(library.converters, converter)().convert(
            BytesIO(content),
            library.StreamInfo(extension=suffix.lower()),
            style_map="p[style-name='Title'] => h1:fresh",  # of Word documents
        )
        title = " ".join((page.title or "").split()) or None
        yield _under_headings(whole_characters(page.markdown), source, _HEADINGS[".md"], title)

    return read


def _read_sheets(content: bytes, source: str) -> Iterator[Record | Skipped]:
    library = require("openpyxl", package="openpyxl", what="Reading sheets", extra="files")
    book = library.load_workbook(BytesIO(content), read_only=True, data_only=True)
    for sheet in book.worksheets:
        for record in _table(enumerate(sheet.values, start=1), source):
            yield replace(record, title=f"{_name(source)}, {sheet.title}")


def _read_csv(content: bytes, source: str) -> Iterator[Record | Skipped]:
    text = _decoded(content)
    try:
        dialect: Any = csv.Sniffer().sniff(text[:8192], ",;\t|")
    except csv.Error:  # one column, for example
        dialect = csv.excel
    rows = csv.reader(StringIO(text, newline=""), dialect)
    yield from _table(((rows.line_num, row) for row in rows), source)


def _table(rows: Iterable[tuple[int, Iterable[Any]]], source: str) -> Iterator[Record]:
    """Tables of Markdown with a few rows each, all under the header, which is the first row."""
    header, part, first = "", "", 0
    for number, cells in rows:
        row = ["" if cell is None else " ".join(str(cell).split()) for cell in cells]
        line = f"\n| {' | '.join(cell.replace('|', '/') for cell in row)} |"
        if not any(row):
            continue
        if not header:
            header, first = f"{line[1:]}\n|{' --- |' * len(row)}", number
            continue
        if part and len(part) + len(line) > _TABLE_CHARACTERS:
            yield Record(text=header + part, source=source, metadata={"line": first})
            part = ""
        first = first if part else number
        part += line
    if header:
        yield Record(text=header + part, source=source, metadata={"line": first})


def _read_json(content: bytes, source: str) -> Iterator[Record | Skipped]:
    """Records of a list of objects with ``"text"``; other JSON is text."""
    text = _decoded(content)
    parsed = parse_json(text)
    items = parsed if isinstance(parsed, list) else [parsed]
    if not items or not all(isinstance(item, dict) and item.get("text") for item in items):
        yield Record(text=text, source=source, first_line=1)
        return
    for number, item in enumerate(items, start=1):
        yield _record(item, source, {} if item is parsed else {"item": number})


def _read_jsonl(content: bytes, source: str) -> Iterator[Record | Skipped]:
    for number, line in enumerate(_decoded(content).split("\n"), start=1):
        if line.strip():
            try:
                yield _record(parse_json(line), source, {"line": number})
            except ValueError as error:
                reason = f'{error}. Expected {{"text": "...", "title": "..."}}; correct the line.'
                yield Skipped(f"{source}:{number}", reason)


def _record(fields: Any, source: str, place: Mapping[str, int]) -> Record:
    if not isinstance(fields, dict):
        raise ValueError(f"a line should be an object, got {type(fields).__name__}")
    text, title, more = (fields.pop(name, None) for name in ("text", "title", "metadata"))
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f'"text" should be a text that is not empty, got {text!r:.100}')
    if not isinstance(title, str | None):
        raise ValueError(f'"title" should be a text, got {title!r:.100}')
    fields |= more if isinstance(more, dict) else {}
    metadata = {key: value for key, value in fields.items() if key not in _OWN_METADATA}
    json.dumps(metadata, allow_nan=False)  # an index keeps it
    return Record(text=text, source=source, title=title or None, metadata={**metadata, **place})


READERS: Mapping[str, Callable[[bytes, str], Iterator[Record | Skipped]]] = {
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
"""(content, source) -> records, by suffix in lower case."""

_SUFFIXES = ", ".join(filter(None, READERS)) + ", and text without a suffix"


def _decoded(content: bytes) -> str:
    """Text with ``\\n`` line ends: UTF-8, or an encoding that charset-normalizer detects."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        detector = require("charset_normalizer", package="charset-normalizer", what="Other text")
        best = detector.from_bytes(content).best()
        if best is None:
            raise FileFormatError(
                f"it is not UTF-8 text ({error.reason} at byte {error.start}). Save it as UTF-8, "
                "or remove it if it is no text."
            ) from error
        text = str(best)
    if "\x00" in text:
        raise FileFormatError("it is binary. Remove it, or give it the suffix of its format.")
    return text.replace("\r\n", "\n").replace("\r", "\n")


# -- Files ---------------------------------------------------------------------------------------


def _files(root: Path) -> Iterator[tuple[str, Path]]:
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


def _items(source: str, file: Path) -> Iterator[Record | Skipped]:
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
    except RagMiddleError:
        raise
    except Exception as error:  # of a library: a damaged file must not stop the others
        reason = (
            f"it cannot be read ({type(error).__name__}: {error!s:.200}). Correct or remove it."
        )
    if reason:
        yield Skipped(source, reason)


def _titled(record: Record) -> Record:
    """The record under the name of its file where it has no title, so that it can be cited."""
    if record.title:
        return record
    title = _name(record.source)
    if "line" in record.metadata:
        title += f", line {record.metadata['line']}"
    return replace(record, title=title)


def _name(source: str) -> str:
    stem = PurePosixPath(source).stem
    return " ".join(stem.replace("_", " ").replace("-", " ").split()) or stem


def _location(record: Record) -> str:
    for unit in ("line", "page"):
        if unit in record.metadata:
            return f"{record.source}:{record.metadata[unit]}"
    return record.source


def _no_documents(root: Path, skipped: list[Skipped]) -> FileFormatError:
    why = [str(entry) for entry in skipped[:5]] or [f"it is empty. Put there {_SUFFIXES}."]
    more = [f"and {len(skipped) - 5} more"] * (len(skipped) > 5)
    return FileFormatError("\n  ".join([f"There are no documents in {str(root)!r}:", *why, *more]))
