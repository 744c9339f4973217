"""One function per file format: bytes in, records out.

Text stays as it is, whatever it holds: document markers and control tokens are made harmless where
a prompt is built, not here.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from math import isfinite
from typing import Any
from zipfile import ZipFile

from rag_middle.errors import DocumentLoadError, RagMiddleError
from rag_middle.extras import require
from rag_middle.plain_data import parse_json, whole_characters
from rag_middle.retrieval.html import html_text
from rag_middle.retrieval.pdf import page_text, pdf_left_out
from rag_middle.retrieval.records import OWN_METADATA, Record, Skipped
from rag_middle.retrieval.word import check_unpacked, word_blocks, word_left_out
from rag_middle.wording import shortened

__all__ = ["READERS", "Reader", "parsed", "read_text"]

#: Begins with a field: a rule at the start of a text does not.
_FRONT_MATTER = re.compile(r"---[ \t]*\n(?=[\w\"'][^\n]*:(?:[ \t]|\n)|---)")
_FRONT_MATTER_END = re.compile(r"^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.MULTILINE)
_LONGEST_FRONT_MATTER = 2**16  # characters; YAML is read slowly
_HEADING_WITHIN = 2**16  # characters; no title comes later
_LONGEST_TITLE = 1000  # characters; it is kept, embedded and shown with every part of the text
#: Characters of a text times those of the other fields of its line, kept with every part of it.
_MOST_COPIED = 2**31
#: Without such a line there is no heading, and nothing is parsed.
_MAYBE_HEADING = re.compile(r"^ {0,3}(?:#|(?:=+|-+)[ \t]*$)", re.MULTILINE)
#: Characters of Markdown that are parsed at once, which takes about 500 times the memory; and
#: those of a part that is one block, whose end is not reached earlier.
_MARKDOWN_PARTS = (2**16, 2**17)
_RST_HEADING = re.compile(
    r"^(?P<words>\S[^\n]*)\n(?P<line>(?P<sign>[=\-`:'\"~^_*+#<>.])(?P=sign)+)[ \t]*$", re.MULTILINE
)
_RST_SIGNS = "=-`:'\"~^_*+#<>. \n"
_DEEPEST = 100  # objects and lists inside each other; more cannot always be written as JSON again

Reader = Callable[[bytes, str], Iterator[Record | Skipped]]
"""(content, source) -> records. Raises DocumentLoadError; its message follows a file name."""


def read_text(content: bytes, source: str) -> Iterator[Record | Skipped]:
    """The whole file."""
    yield Record(text=_decoded(content), source=source, first_line=1)


def read_markdown(content: bytes, source: str) -> Iterator[Record | Skipped]:
    """The file as it is written, without front matter. Its first heading is the title.

    Where there is no heading, ``title:`` of the front matter is the title.
    """
    whole = _decoded(content)
    start, named = _front_matter(whole)
    body = start
    title, heading_end = _first_heading(whole[start:])
    if title is None:
        title = named
    start = _text_start(whole, start + heading_end) or start
    yield Record(
        text=whole[start:],
        source=source,
        title=title,
        start=start,
        first_line=whole.count("\n", 0, start) + 1,
        headings=_from(start - body, _markdown_headings(whole[body:])),
    )


def read_rst(content: bytes, source: str) -> Iterator[Record | Skipped]:
    """reStructuredText as it is written. Its first section title is the title."""
    text = _decoded(content)
    headings = [
        heading
        for heading in _RST_HEADING.finditer(text)
        if len(heading["line"]) >= len(heading["words"].rstrip()) <= _LONGEST_TITLE
    ]
    title, start = None, 0
    if headings:
        title = headings[0]["words"].strip()
        if not text[: headings[0].start()].strip(_RST_SIGNS):  # at most a line above the title
            start = _text_start(text, headings[0].end())
    yield Record(
        text=text[start:],
        source=source,
        title=title,
        start=start,
        first_line=text.count("\n", 0, start) + 1,
        headings=_from(start, ((match.start(), match["words"].strip()) for match in headings)),
    )


def read_docx(content: bytes, source: str) -> Iterator[Record | Skipped]:
    """The paragraphs and table rows of a Word document. Its title, or first heading, is the title.

    Offsets count characters of that text.
    """
    docx = require("docx", package="python-docx", what="Reading Word documents")
    try:
        with ZipFile(BytesIO(content)) as parts:
            check_unpacked(parts)
        document = docx.Document(BytesIO(content))
        blocks = list(word_blocks(document))
        left_out = list(word_left_out(document.element.body))
    except (DocumentLoadError, MemoryError):
        raise
    except Exception as error:  # broken files raise anything
        if str(error).startswith("unknown error"):  # what lxml says where memory ends
            raise MemoryError from error
        raise DocumentLoadError(
            f"it cannot be read as a Word document ({type(error).__name__}: "
            f"{shortened(str(error)).rstrip('.')}). Open it in a word processor and save it again "
            "as .docx."
        ) from error
    headings, at = [], 0
    for block, is_heading in blocks:
        if is_heading and len(block) <= _LONGEST_TITLE:
            headings.append((at, " ".join(block.split())))
        at += len(block) + 2
    text = "\n\n".join(block for block, _ in blocks)
    start = _text_start(text, len(blocks[0][0])) if headings and not headings[0][0] else 0
    yield Record(
        text=text[start:],
        source=source,
        title=headings[0][1] if headings else None,
        start=start,
        headings=_from(start, headings),
    )
    yield from (Skipped(source=source, reason=reason) for reason in left_out)


def read_html(content: bytes, source: str) -> Iterator[Record | Skipped]:
    """The visible text. Offsets count characters of that text."""
    title, text = html_text(_decoded(content))
    title = _as_title(title)
    first_line, _, _ = text.partition("\n")
    start = _text_start(text, len(first_line)) if first_line == title else 0
    yield Record(text=text[start:], source=source, title=title, start=start)


def read_jsonl(content: bytes, source: str) -> Iterator[Record | Skipped]:
    """A record per line: ``{"text": "...", "title": "...", ...}``.

    The fields of ``"metadata"``, if there is one, and all other fields become metadata, beside
    ``"line"``. A line that is no such object is skipped, and so are fields of `OWN_METADATA`.
    """
    left_out: set[str] = set()
    for number, line in enumerate(_decoded(content).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            parsed = parse_json(line, parse_constant=_no_number, parse_float=_finite)
            yield _record(parsed, number, source, left_out)
        except ValueError as error:
            reason = str(error).rstrip(".")
            expected = 'Expected {"text": "...", "title": "..."}; correct the line or remove it.'
            yield Skipped(source=f"{source}:{number}", reason=f"{reason}. {expected}")
    if left_out:
        reason = (
            f"fields {', '.join(sorted(left_out))} of its lines are left out: metadata of these "
            "names says where a document stands and how well it fits. Name them otherwise."
        )
        yield Skipped(source=source, reason=reason)


def read_pdf(content: bytes, source: str) -> Iterator[Record | Skipped]:
    """A record per page. Offsets count characters of the page's text."""
    pypdf = require("pypdf", package="pypdf", what="Reading PDF")
    try:
        with _without_remarks("pypdf"):
            reader = pypdf.PdfReader(BytesIO(content))
            title = _pdf_title(reader)
            pages = [whole_characters(page_text(page)) for page in reader.pages]
            left_out = list(pdf_left_out(reader, pages))
    except MemoryError:
        raise
    except Exception as error:  # broken files raise anything: KeyError, RecursionError, ...
        if "decrypt" in str(error) or type(error).__name__ == "DependencyError":
            raise DocumentLoadError("it is encrypted: save it without a password.") from error
        raise DocumentLoadError(
            f"it cannot be read as PDF ({type(error).__name__}: "
            f"{shortened(str(error)).rstrip('.')}). Open it in a viewer and save it again, or "
            "remove it."
        ) from error
    if not any(page.strip() for page in pages):
        raise DocumentLoadError(
            f"its {len(pages)} pages hold no text (scanned?): run OCR, for example `ocrmypdf`."
        )
    for number, page in enumerate(pages, start=1):
        if page.strip():
            metadata = {"page": number}
            yield Record(text=page, source=source, title=title, metadata=metadata)
    yield from (Skipped(source=source, reason=reason) for reason in left_out)


READERS: Mapping[str, Reader] = {
    "": read_text,  # README, LICENSE, notes; what is no text says so
    ".txt": read_text,
    ".md": read_markdown,
    ".markdown": read_markdown,
    ".jsonl": read_jsonl,
    ".html": read_html,
    ".htm": read_html,
    ".pdf": read_pdf,
    ".rst": read_rst,
    ".docx": read_docx,
}
"""The reader of each suffix, in lower case."""


def parsed(content: bytes, suffix: str, source: str) -> Iterator[Record | Skipped]:
    """What a file holds, or why it cannot be read.

    Raises:
        MissingExtraError: its format needs a package that is not installed.
        MemoryError: it takes more memory than there is.
    """
    item = None
    try:
        for item in READERS[suffix](content, source):
            if isinstance(item, Record) and not item.text.strip():
                raise DocumentLoadError("it holds no text. Fill it or remove it.")
            yield item
        if item is None:  # a .jsonl file of blank lines
            raise DocumentLoadError("it holds no records. Fill it or remove it.")
    except DocumentLoadError as error:
        yield Skipped(source=source, reason=str(error))
    except (RagMiddleError, MemoryError):
        raise
    except Exception as error:  # of a library that reads it: one file must not stop all others
        reason = f"it cannot be read ({type(error).__name__}: {shortened(str(error))})."
        yield Skipped(source=source, reason=f"{reason} Correct it or remove it.")


@contextmanager
def _without_remarks(logger: str) -> Iterator[None]:
    """Keep a library from logging: its remarks quote the document, terminal escapes and all."""
    log = logging.getLogger(logger)
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)


def _decoded(content: bytes) -> str:
    """UTF-8 text with ``\\n`` line ends, as `Path.read_text` gives it."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentLoadError(
            f"it is not UTF-8 text ({error.reason} at byte {error.start}). Save it as UTF-8, or "
            "remove it if it is no text."
        ) from error
    if "\x00" in text:
        raise DocumentLoadError(
            f"it is binary (a zero byte at character {text.index(chr(0))}). Remove it, or give it "
            "the suffix of its format."
        )
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _front_matter(text: str) -> tuple[int, str | None]:
    """Where the text begins behind front matter, and its title; 0 where there is none.

    Prose between two thematic breaks stands at the same place (``Note: it was raised.``), so that
    only fields whose names are one word each, as YAML reads them, are front matter.
    """
    opened = _FRONT_MATTER.match(text)
    closed = _FRONT_MATTER_END.search(text, opened.end()) if opened else None
    if opened is None or closed is None or closed.start() - opened.end() > _LONGEST_FRONT_MATTER:
        return 0, None
    between = text[opened.end() : closed.start()]
    if not between:
        return closed.end(), None
    yaml = require("yaml", package="pyyaml", what="Reading front matter")
    try:
        fields = yaml.compose(between, Loader=yaml.SafeLoader)  # values are not made: no bombs
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError):  # "\\UFFFFFFFF"
        return 0, None
    if not isinstance(fields, yaml.MappingNode) or not all(
        isinstance(key, yaml.ScalarNode) and len(key.value.split()) == 1 for key, _ in fields.value
    ):
        return 0, None
    titles = (  # as they are written: numbers and dates too
        value.value
        for key, value in fields.value
        if key.value == "title" and isinstance(value, yaml.ScalarNode)
        if value.tag != "tag:yaml.org,2002:null"
    )
    return closed.end(), _as_title(whole_characters(next(titles, "")))


def _markdown_headings(text: str) -> Iterator[tuple[int, str]]:
    """Offset and words, as they are written, of headings that stand in no list or quotation."""
    parser = require("markdown_it", package="markdown-it-py", what="Reading Markdown")
    blocks = parser.MarkdownIt().disable("inline")
    at = 0
    while at < len(text) and _MAYBE_HEADING.search(text, at):
        for size in _MARKDOWN_PARTS:
            end = text.find("\n", at + size) + 1 or len(text)
            # Only what opens a block, or is one, says in which lines it stands.
            found = [
                (token.map[0], tokens[index + 1].content if token.type == "heading_open" else "")
                for tokens in [blocks.parse(text[at:end])]
                for index, token in enumerate(tokens)
                if token.level == 0 and token.map
            ]
            if end == len(text) or (found and found[-1][0] > 0):
                break
        if end < len(text) and found and found[-1][0] > 0:
            last, _ = found.pop()  # it may go on: the next part begins with it
        else:
            last = -1
        line = 0
        for number, words in [*found, (last, "")]:
            while line < number:
                at = text.index("\n", at) + 1
                line += 1
            if 0 < len(words.strip()) <= _LONGEST_TITLE:
                indent = len(text[at : at + 4]) - len(text[at : at + 4].lstrip(" "))
                yield at + indent, " ".join(words.split())
        if last < 0:
            at = end


def _text_start(whole: str, heading_end: int) -> int:
    """Where the text begins behind a heading that opens it; 0 where nothing follows.

    A prompt shows the title before the text, which need not begin with it once more.
    """
    rest = whole[heading_end:].lstrip()
    return len(whole) - len(rest) if rest else 0


def _from(start: int, headings: Iterable[tuple[int, str]]) -> tuple[tuple[int, str], ...]:
    """Headings by their offset in the text that begins at `start`."""
    return tuple((at - start, words) for at, words in headings if at >= start)


def _first_heading(text: str) -> tuple[str | None, int]:
    """The first heading without markup, and where it ends if the text begins with it, else 0."""
    parser = require("markdown_it", package="markdown-it-py", what="Reading Markdown")
    tokens = parser.MarkdownIt().parse(text[:_HEADING_WITHIN])
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            inline = tokens[at + 1].children or []
            words = "".join(part.content or " " * part.type.endswith("break") for part in inline)
            title = " ".join(words.split())
            if _as_title(title):
                lines = text.split("\n")[: token.map[1]]
                return title, sum(len(line) + 1 for line in lines) if at == 0 else 0
    return None, 0


def _record(line: Any, number: int, source: str, left_out: set[str]) -> Record:
    if not isinstance(line, dict):
        raise ValueError(f"a line should be an object, got {type(line).__name__}")
    fields = dict(line)
    text, title, metadata = fields.pop("text", None), fields.pop("title", None), fields
    if not isinstance(text, str) or not text.strip():
        raise ValueError('"text" should be a text that is not empty')
    if title is not None and not isinstance(title, str):
        raise ValueError('"title" should be a text')
    if len(title or "") > _LONGEST_TITLE:
        raise ValueError(f'"title" should have at most {_LONGEST_TITLE} characters')
    if isinstance(fields.get("metadata"), dict):
        metadata = {**fields.pop("metadata"), **fields}
    left_out.update(metadata.keys() & set(OWN_METADATA))
    metadata = {name: value for name, value in metadata.items() if name not in OWN_METADATA}
    (title or "").encode(), text.encode()  # half of a surrogate pair is a ValueError
    _check_depth(metadata, _DEEPEST)
    size = len(json.dumps(metadata))
    if size * len(text) > _MOST_COPIED:
        raise ValueError(
            f'its fields beside "text" ({size:,} characters) would be kept with every part of a '
            f"text of {len(text):,}: leave some out, or split the text into several lines"
        )
    return Record(
        text=text, source=source, title=title or None, metadata={**metadata, "line": number}
    )


def _check_depth(value: Any, left: int) -> None:
    if isinstance(value, dict | list):
        if not left:
            raise ValueError(f"it is nested more than {_DEEPEST} deep")
        for item in value.values() if isinstance(value, dict) else value:
            _check_depth(item, left - 1)


def _finite(digits: str) -> float:
    number = float(digits)
    if not isfinite(number):
        raise ValueError(f"{digits[:20]} is too large a number")
    return number


def _no_number(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON number")


def _pdf_title(reader: Any) -> str | None:
    title = reader.metadata.title if reader.metadata else None
    return _as_title(whole_characters(title)) if isinstance(title, str) else None


def _as_title(words: str | None) -> str | None:
    """The words in a line; None where there are none, or more than a title has."""
    title = " ".join((words or "").split())
    return title if 0 < len(title) <= _LONGEST_TITLE else None
