"""Read a prompt: text with document markers, or JSON.

::

    {"prefix": "...", "documents": ["...", {"text": "...", "title": "...", "id": "..."}],
     "suffix": "..."}
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Any

from rag_middle.documents import ContextPrompt, Document, parse
from rag_middle.errors import PromptError
from rag_middle.files import reason
from rag_middle.plain_data import parse_json
from rag_middle.registry import suggest

_PROMPT_FIELDS = ("prefix", "documents", "suffix", "separator")
_DOCUMENT_FIELDS = ("text", "title", "id", "metadata")


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
    try:
        read = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        text = read.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise PromptError(
            f"The prompt file {source!r} cannot be read ({reason(error)}). Pass the path of a "
            "file in UTF-8, or - to read standard input."
        ) from error
    if kind is PromptFormat.auto:
        looks_like_json = source.endswith(".json") or text.lstrip().startswith("{")
        kind = PromptFormat.json if looks_like_json else PromptFormat.text
    if kind is PromptFormat.text:
        return parse(text, trusted=True)
    try:
        content = parse_json(text)
    except ValueError as error:
        raise PromptError(
            f"The prompt in {source!r} is not valid JSON: {error}. Correct it, or pass "
            "--prompt-format text if it is a text."
        ) from error
    fields = _fields(content, _PROMPT_FIELDS, "the prompt")
    listed = fields.pop("documents", [])
    if not isinstance(listed, list):
        raise PromptError(f"In JSON, 'documents' should be a list; got {type(listed).__name__}.")
    documents = [
        Document(each)
        if isinstance(each, str)
        else Document(**_fields(each, _DOCUMENT_FIELDS, f"document {index}"))
        for index, each in enumerate(listed)
    ]
    return ContextPrompt(documents=documents, **fields)


def _fields(content: object, expected: tuple[str, ...], owner: str) -> dict[str, Any]:
    """The fields of a JSON object that are not null, if it has only those it may have."""
    if not isinstance(content, dict):
        raise PromptError(
            f"In JSON, {owner} should be an object with {', '.join(expected)}; got "
            f"{type(content).__name__}."
        )
    given = {name: value for name, value in content.items() if value is not None}
    for name in given:
        if name not in expected:
            raise PromptError(
                f"In JSON, {owner} has no field {name!r}.{suggest(name, expected)} Fields: "
                f"{', '.join(expected)}."
            )
    if "text" in expected and "text" not in given:
        raise PromptError(f"In JSON, {owner} needs a field 'text'.")
    return given
