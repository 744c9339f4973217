"""Read a prompt: text with document markers, or JSON.

::

    {"prefix": "...", "documents": ["...", {"text": "...", "title": "...", "id": "..."}],
     "suffix": "..."}
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rag_middle.documents import ContextPrompt, Document, parse
from rag_middle.errors import PromptError
from rag_middle.files import reason
from rag_middle.plain_data import parse_json
from rag_middle.registry import suggest

_PROMPT_FIELDS = ("prefix", "documents", "suffix", "separator")
_DOCUMENT_FIELDS = ("text", "title", "id", "metadata")


def read_prompt(source: str, kind: str = "auto") -> ContextPrompt:
    """The prompt in a file, or on standard input for ``-``.

    Markers in it count whoever wrote them: the file is named as a prompt. Text that is not to be
    trusted goes into JSON, or through `rag_middle.escape` on its way into the file.

    Args:
        source: path, or ``-``.
        kind: ``text`` or ``json``; with ``auto``, a file named ``*.json`` and any text that begins
            with ``{`` is JSON.

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
    looks_like_json = source.endswith(".json") or text.lstrip().startswith("{")
    if kind == "text" or (kind == "auto" and not looks_like_json):
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
        Document(it)
        if isinstance(it, str)
        else Document(**_fields(it, _DOCUMENT_FIELDS, f"document {index}"))
        for index, it in enumerate(listed)
    ]
    return ContextPrompt(documents=documents, **fields)


def _fields(content: object, expected: tuple[str, ...], owner: str) -> dict[str, Any]:
    """The fields of a JSON object that are not null, if it has only those it may have."""
    names = ", ".join(expected)
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise PromptError(f"In JSON, {owner} should be an object with {names}; got {kind}.")
    for name in content:
        if name not in expected:
            hint = suggest(name, expected)
            raise PromptError(f"In JSON, {owner} has no field {name!r}.{hint} Fields: {names}.")
    given = {name: value for name, value in content.items() if value is not None}
    if "text" in expected and "text" not in given:
        raise PromptError(f"In JSON, {owner} needs a field 'text'.")
    return given
