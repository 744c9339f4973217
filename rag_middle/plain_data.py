"""JSON and numbers that somebody else wrote, or a failing disk damaged: read, or refused.

It stands at the bottom of the package because everything that reads files needs it, and what
`json.loads` lets through or raises besides `ValueError` would be forgotten in one of these places.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from math import inf, isfinite
from typing import Any, TypeGuard

from rag_middle.errors import RagMiddleError, UnsupportedGenerationError
from rag_middle.wording import shortened


def parse_json(
    text: str | bytes,
    *,
    repeated_keys: bool = False,
    **options: Any,
) -> Any:
    """What a JSON text says.

    Args:
        text: bytes are UTF-8.
        repeated_keys: take the last value of a key that an object has more than once, as most
            programs do: for what other programs and models write.
        options: of `json.loads`.

    Raises:
        ValueError: it is no JSON, is nested too deeply for Python, an object has a key more than
            once, or it holds strings that are no text (half of a surrogate pair, which no
            tokenizer and no file takes).
    """
    if not repeated_keys:
        options.setdefault("object_pairs_hook", _once_each)
    try:
        content = json.loads(text if isinstance(text, str) else text.decode("utf-8-sig"), **options)
        if "\\u" in str(text):  # only escapes can say half a pair
            json.dumps(content, ensure_ascii=False, default=str).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return content


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        [(repeated, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"an object has the key {shortened(repr(repeated))} more than once")
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


def are_identical(one: object, other: object) -> bool:
    """Whether two values are equal, their types and the order of their keys included.

    To Python, 1, 1.0 and True are equal, and so are mappings in another order. A schema means
    something else with each.
    """
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping):
        assert isinstance(other, Mapping)
        return are_identical(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple):
        assert isinstance(other, list | tuple)
        return len(one) == len(other) and all(map(are_identical, one, other))
    return bool(one == other)


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
