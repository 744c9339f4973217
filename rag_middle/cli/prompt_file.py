"""Read a prompt: text with document markers, or JSON.

::

    {"prefix": "...", "documents": ["...", {"text": "...", "title": "...", "id": "..."}],
     "suffix": "..."}
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from rag_middle.documents import ContextPrompt, Document, parse
from rag_middle.errors import PromptError
from rag_middle.files import reason
from rag_middle.plain_data import parse_json
from rag_middle.registry import suggest

_MAX_BYTES = 2**28
_PROMPT_FIELDS: Mapping[str, type] = {
    "prefix": str,
    "documents": list,
    "suffix": str,
    "separator": str,
}
_DOCUMENT_FIELDS: Mapping[str, type] = {"text": str, "title": str, "id": str, "metadata": dict}
_IN_WORDS: Mapping[type, str] = {str: "a string", list: "a list", dict: "an object"}


class PromptFormat(StrEnum):
    """How a prompt is written; auto: JSON if it is named or looks so."""

    auto = "auto"
    text = "text"
    json = "json"


def read_prompt(source: str, kind: PromptFormat = PromptFormat.auto) -> ContextPrompt:
    """The prompt in a file, or on standard input for ``-``.

    Markers in it count whoever wrote them: the file is named as a prompt. Text that is not to be
    trusted goes into JSON, or through `rag_middle.escape` on its way into the file.

    Args:
        source: path, or ``-``.
        kind: with ``auto``, a file named ``*.json`` and any text that begins with ``{`` is JSON.

    Raises:
        PromptError: there is no such file, it is no UTF-8 text, or no JSON of the expected shape.
        MarkerError: markers are unbalanced, nested or stray.
    """
    text = _read(source)
    if kind is PromptFormat.auto:
        looks_like_json = source.endswith(".json") or text.lstrip().startswith("{")
        kind = PromptFormat.json if looks_like_json else PromptFormat.text
    if kind is PromptFormat.text:
        return parse(text, trusted=True)
    try:
        content = parse_json(text)
    except ValueError as error:
        raise PromptError(
            f"The prompt in {_named(source)} is not valid JSON: {error}. Correct it, or pass "
            "--prompt-format text if it is a text."
        ) from error
    return _prompt(content)


def _read(source: str) -> str:
    try:
        if source == "-":
            content = sys.stdin.buffer.read(_MAX_BYTES + 1)
        else:
            with Path(source).open("rb") as file:  # may be a pipe, as <(command) is
                content = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: no file can have that name
        raise PromptError(
            f"The prompt file {source!r} cannot be read ({reason(error)}). Pass the path of a "
            "file, or - to read standard input."
        ) from error
    if len(content) > _MAX_BYTES:
        raise PromptError(
            f"The prompt in {_named(source)} has more than {_MAX_BYTES // 2**20} MiB, which no "
            "model reads. Pass a shorter one."
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PromptError(
            f"The prompt in {_named(source)} is not UTF-8 text ({error.reason} at byte "
            f"{error.start}). Save it as UTF-8."
        ) from error


def _prompt(content: object) -> ContextPrompt:
    fields = _checked(content, _PROMPT_FIELDS, "the prompt")
    documents = [
        Document(each)
        if isinstance(each, str)
        else Document(**_checked(each, _DOCUMENT_FIELDS, f"document {index}", required={"text"}))
        for index, each in enumerate(fields.pop("documents", []))
    ]
    return ContextPrompt(documents=documents, **fields)


def _checked(
    content: object, expected: Mapping[str, type], owner: str, required: Collection[str] = ()
) -> dict[str, Any]:
    """The fields of a JSON object that are not null, if it has only those it may have."""
    if not isinstance(content, dict):
        raise PromptError(
            f"In JSON, {owner} should be an object with {', '.join(expected)}; got "
            f"{type(content).__name__}."
        )
    for name, value in content.items():
        if name not in expected:
            raise PromptError(
                f"In JSON, {owner} has no field {name!r}.{suggest(name, expected)} Fields: "
                f"{', '.join(expected)}."
            )
        if value is not None and not isinstance(value, expected[name]):
            raise PromptError(
                f"In JSON, {name!r} of {owner} should be {_IN_WORDS[expected[name]]}; got "
                f"{type(value).__name__}."
            )
    given = {name: value for name, value in content.items() if value is not None}
    for name in required:
        if name not in given:
            raise PromptError(f"In JSON, {owner} needs a field {name!r}.")
    return given


def _named(source: str) -> str:
    return "standard input" if source == "-" else repr(source)
