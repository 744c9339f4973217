"""The text of a PDF's pages, and what it lacks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from rag_middle.retrieval.symbols import UNKNOWN

__all__ = ["page_text", "pdf_left_out"]

_MOST_RANGES = 20  # of pages, in one reason

#: How the character codes begin that pypdf reads as characters. It takes other codes of composite
#: fonts for Unicode too, though they are mostly numbers of glyphs.
_READ_CODES = ("/Uni", "/GB-", "/GBpc-", "/GBK-", "/GBK2K-", "/ETen", "/90ms-")


def page_text(page: Any) -> str:
    """What a page shows, with U+FFFD for characters whose font does not say what they are."""
    pieces: list[str] = []
    untold: dict[int, re.Pattern[str] | None] = {}  # by the id of a font, which the page keeps

    def piece(text: str, _current: Any, _matrix: Any, font: Any, _size: Any) -> None:
        if text and isinstance(font, Mapping):
            if id(font) not in untold:
                untold[id(font)] = _untold(font)
            if pattern := untold[id(font)]:
                text = pattern.sub(UNKNOWN, text)
        pieces.append(text)

    page.extract_text(visitor_text=piece)
    return "".join(pieces)


def _untold(font: Mapping[str, Any]) -> re.Pattern[str] | None:
    """What pypdf gives for characters of a font that does not say what they are."""
    encoding = _value(font, "/Encoding")
    if _value(font, "/Subtype") == "/Type0" and _value(font, "/ToUnicode") is None:
        told = isinstance(encoding, str) and encoding.startswith(_READ_CODES)
        return None if told else re.compile(r"\S")
    # Of glyphs without a usual name, pypdf gives the name.
    differences = _value(encoding, "/Differences") if isinstance(encoding, Mapping) else None
    if not isinstance(differences, Sequence):
        return None
    names = {name for name in differences if isinstance(name, str) and re.search(r"[\d._]", name)}
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if names else None


def pdf_left_out(reader: Any, pages: Sequence[str]) -> Iterator[str]:
    """What `pages`, the texts of a PDF's pages, lack of what it shows."""
    if empty := [number for number, page in enumerate(pages, start=1) if not page.strip()]:
        yield (
            f"its pages {_ranges(empty)} hold no text (blank, scanned or damaged?). Where they "
            "show some, run OCR, for example `ocrmypdf --skip-text`."
        )
    if unknown := sum(page.count(UNKNOWN) for page in pages):
        yield (
            f"{unknown} characters of it stand as {UNKNOWN} in its text: their font does not say "
            "what they are. Run OCR, for example `ocrmypdf --force-ocr`."
        )
    try:
        yield from list(_unread_parts(reader))
    except MemoryError:
        raise
    except Exception:  # broken files raise anything; the text of the pages is there all the same
        yield (
            "whether it has forms, comments or attached files could not be told: it is damaged. "
            "Open it in a viewer and save it again."
        )


def _unread_parts(reader: Any) -> Iterator[str]:
    written = sum(
        _writes(annotation.get_object())
        for page in reader.pages
        for annotation in page.annotations or ()
    )
    if written:
        yield (
            f"{written} filled-in fields and typed comments within it are not read. Print it to "
            "a PDF, which makes them text of its pages."
        )
    catalog = reader.root_object
    if _dictionary(catalog, "/Names").get("/EmbeddedFiles") is not None:
        yield "the files attached to it are not read. Save them beside it."
    if _value(catalog, "/NeedsRendering") and "/XFA" in _dictionary(catalog, "/AcroForm"):
        yield (
            "its form (XFA) is not read: only Adobe's programs show it. Print it to a PDF from one."
        )


def _ranges(numbers: Sequence[int]) -> str:
    """``2, 5-7``."""
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ]
    shown = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    more = ["..."] if len(shown) > _MOST_RANGES else []
    return ", ".join(shown[:_MOST_RANGES] + more)


def _writes(annotation: Any) -> bool:
    """Whether an annotation shows what was typed: a field's value, or a comment on the page."""
    if not isinstance(annotation, Mapping):
        return False
    if _value(annotation, "/Subtype") == "/FreeText":
        return bool(_value(annotation, "/Contents"))
    field = {**_dictionary(annotation, "/Parent"), **annotation}  # one of several places of a field
    is_form = _value(field, "/FT") in ("/Tx", "/Ch", "/Btn")
    return is_form and _value(field, "/V") not in (None, "", "/Off")


def _value(holder: Mapping[str, Any], name: str) -> Any:
    value: Any = holder.get(name)
    return value.get_object() if hasattr(value, "get_object") else value


def _dictionary(holder: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Of `holder`; an empty one where it holds something else."""
    value = _value(holder, name)
    return value if isinstance(value, Mapping) else {}
