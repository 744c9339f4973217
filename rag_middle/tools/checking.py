"""Whether a finished answer holds under its schema as JSON Schema means it (`jsonschema`).

llguidance differs from it in a few places: an excluded whole bound of a range below one, the 29th
of February in any year, a property's name in escapes, what a ``oneOf`` leaves open.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

from rag_middle.notices import AnswerFormatWarning, warn_caller
from rag_middle.wording import shortened

#: Of schemas that are not checked: a client's patterns and references may take exponential time.
_UNCHECKED = ("pattern", "$ref", "$dynamicRef")


def check_answer(text: str, response_format: Mapping[str, Any] | None) -> None:
    """Warn where a whole answer does not hold under the JSON schema of `response_format`."""
    form = response_format or {}
    if form.get("type") != "json_schema":
        return
    with suppress(ValueError, RecursionError):  # numbers and levels beyond what Python reads
        if wrong := schema_error(json.loads(text), form["json_schema"]["schema"]):
            warn_caller(
                AnswerFormatWarning(
                    f"The answer does not hold under its JSON schema: {shortened(wrong)}. Ask "
                    "again, or leave that out of the schema and check the answer for it."
                )
            )


def schema_error(value: Any, schema: Mapping[str, Any]) -> str | None:
    """Where and why a value does not hold under a schema.

    Returns:
        None where it holds, where the schema has patterns or references, and where `jsonschema`
        does not read the schema, of which llguidance has its own understanding.
    """
    if any(word in json.dumps(schema) for word in _UNCHECKED):
        return None
    draft = import_module("jsonschema").Draft202012Validator
    try:
        validator = draft(schema, format_checker=draft.FORMAT_CHECKER)
        error = next(validator.iter_errors(value), None)
    except Exception:
        return None
    return None if error is None else f"{error.json_path}: {error.message}"
