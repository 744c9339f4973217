"""``NAME=VALUE``, as ``--method-option`` and its like take it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rag_middle.errors import MethodConfigError
from rag_middle.plain_data import parse_json

__all__ = ["parse_method_options"]


def parse_method_options(
    given: Iterable[str],
    *,
    flag: str = "--method-option",
    example: str = "min_ratio=1.2 or layers=[10,11,12]",
) -> dict[str, Any]:
    """Values are JSON where they can be read as JSON, and strings otherwise.

    Keys of objects that are whole numbers become such: layers are numbers.

    Args:
        given: entries.
        flag: that they were given with, for messages.
        example: of entries, for messages.

    Raises:
        MethodConfigError: an entry without ``=``, or a name given twice.
    """
    options: dict[str, Any] = {}
    for entry in given:
        name, separator, value = entry.partition("=")
        name = name.strip().replace("-", "_")
        if not separator or not name:
            raise MethodConfigError(f"{flag} {entry!r}: write NAME=VALUE, e.g. {example}.")
        if name in options:
            raise MethodConfigError(f"{flag} {name} was given twice.")
        options[name] = _value(value)
    return options


def _value(text: str) -> Any:
    try:
        return parse_json(text, object_pairs_hook=_numbered)
    except ValueError:
        return text


def _numbered(pairs: list[tuple[str, Any]]) -> dict[Any, Any]:
    return {int(key) if key.isdecimal() else key: value for key, value in pairs}
