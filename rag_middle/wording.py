"""Words for numbers and lists in messages and reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def counted(number: int, noun: str) -> str:
    """``1 document``, ``2 documents``: for nouns that take an s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(values: Sequence[object]) -> str:
    """``a, b and c``."""
    *first, last = map(str, values)
    return f"{', '.join(first)} and {last}" if first else last


def percent(share: float, digits: int = 0) -> str:
    """A share in per cent: ``79 %``."""
    return f"{100 * share:.{digits}f} %".replace("-", "−")


def points(difference: Mapping[str, float]) -> str:
    """A difference of shares with its 95 % interval, from ``value``, ``low`` and ``high``."""
    value, low, high = (
        f"{100 * difference[name]:+.1f}".replace("-", "−") for name in ("value", "low", "high")
    )
    return f"{value} points (95 % interval {low} to {high})"


def shortened(text: str, most: int = 300) -> str:
    """At most so many characters of a text; ``…`` stands for the rest.

    By default as many as a message quotes of what another program says.
    """
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"
