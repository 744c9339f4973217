"""Whether a finished answer holds under its schema as JSON Schema means it (`jsonschema`).

llguidance differs from it in a few places: an excluded whole bound of a range below one, the 29th
of February in any year, a property's name in escapes, what a ``oneOf`` leaves open.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from time import monotonic
from typing import Any

from rag_middle.notices import AnswerFormatWarning, warn_caller
from rag_middle.wording import shortened

_SECONDS = 0.5  # of a check: a client's patterns and references may take exponential time


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
                ),
                every_time=True,
            )


def schema_error(value: Any, schema: Mapping[str, Any]) -> str | None:
    """Where and why a value does not hold under a schema.

    Returns:
        None where it holds, and where nobody can say: the check takes more than half a second, or
        `jsonschema` does not read the schema, of which llguidance has its own understanding.
    """
    jsonschema, referencing = import_module("jsonschema"), import_module("referencing")
    regex = import_module("regex")
    draft, until = jsonschema.Draft202012Validator, monotonic() + _SECONDS
    if "patternProperties" in str(schema):  # which it compares without a limit
        return None

    def left() -> float:
        if (seconds := until - monotonic()) <= 0:
            raise TimeoutError
        return seconds

    def reference(validator: Any, target: Any, value: Any, part: Any) -> Iterator[Any]:
        left()
        yield from draft.VALIDATORS["$ref"](validator, target, value, part)

    def pattern(validator: Any, wanted: Any, value: Any, part: Any) -> Iterator[Any]:
        if isinstance(value, str) and not regex.search(wanted, value, timeout=left()):
            yield jsonschema.ValidationError(f"{value!r} does not match {wanted!r}")

    validator = jsonschema.validators.extend(draft, {"$ref": reference, "pattern": pattern})
    try:
        error = next(
            validator(
                schema,
                format_checker=draft.FORMAT_CHECKER,
                registry=referencing.Registry(),  # fetches nothing
            ).iter_errors(value),
            None,
        )
    except Exception:
        return None
    return None if error is None else f"{error.json_path}: {error.message}"
