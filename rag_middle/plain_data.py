"""JSON and numbers that somebody else wrote: read, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from math import inf, isfinite
from typing import Any, TypeGuard

from rag_middle.errors import RagMiddleError, UnsupportedGenerationError


def parse_json(text: str | bytes, **options: Any) -> Any:
    """What a JSON text says.

    Args:
        text: bytes are UTF-8.
        options: of `json.loads`.

    Raises:
        ValueError: it is no JSON, is nested too deeply for Python, or holds strings that are no
            text (half of a surrogate pair, which no tokenizer and no file takes).
    """
    try:
        content = json.loads(text if isinstance(text, str) else text.decode("utf-8-sig"), **options)
        if "\\u" in str(text):  # only escapes can say half a pair
            json.dumps(content, ensure_ascii=False, default=str).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return content


def is_finite_number(value: object) -> TypeGuard[int | float]:
    """Whether this is a number that tensors can hold, and no truth value: finite, of 64 bits."""
    if isinstance(value, int):
        return not isinstance(value, bool) and -(2**63) <= value < 2**63
    return isinstance(value, float) and isfinite(value)


def is_whole(value: object, least: float = -inf) -> TypeGuard[int]:
    """Whether this is a whole number from `least` on, and no truth value."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def check_whole(name: str, value: object, *, least: int, hint: str = "") -> None:
    """Raise `UnsupportedGenerationError` unless `value` is a whole number from `least` on."""
    if not is_whole(value, least):
        raise UnsupportedGenerationError(
            f"{name} must be a whole number, at least {least}, got {value!r:.100}. {hint}".rstrip()
        )


def check_keywords(
    name: str, value: object, error: type[RagMiddleError] = UnsupportedGenerationError
) -> None:
    """Raise `error` unless `value` is None or a mapping of names, as keyword arguments are."""
    if value is None or (isinstance(value, Mapping) and all(isinstance(k, str) for k in value)):
        return
    raise error(
        f"{name} must be a mapping from names to values ({{'name': ...}}), got {value!r:.100}.",
    )


def levels_of(value: object) -> int:
    """How deeply lists and mappings are nested in plain JSON."""
    levels, here = 0, [value]
    while here := [part for part in here if isinstance(part, Mapping | list | tuple)]:
        levels += 1
        here = [
            inner
            for part in here
            for inner in (part.values() if isinstance(part, Mapping) else part)
        ]
    return levels


def map_strings(
    value: Any,
    change: Callable[[str], object],
    change_key: Callable[[str], object] | None = None,
) -> Any:
    """Plain data with every string changed, keys of mappings too (by `change_key`, if any)."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        of_key = change_key or change
        return {
            of_key(key) if isinstance(key, str) else key: map_strings(item, change, change_key)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [map_strings(item, change, change_key) for item in value]
    return value


def whole_characters(text: str) -> str:
    """The text with U+FFFD for each half of a character (a lone surrogate), as on the web.

    No tokenizer takes halves, and one document or message that holds one must not make every
    request fail.
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
