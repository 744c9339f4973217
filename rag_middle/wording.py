"""Messages that name arguments, and words for numbers.

A message is made of parts: text, and an `Argument` wherever one is named, so that an error knows
which parameter it is about. It stands at the bottom of the package because errors and warnings are
such messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_NO_VALUE: Final = object
_MOST_QUOTED = 100  # characters of a value
#: Flags of the command line that are not called as the parameter is.
RENAMED_FLAGS: Final = {
    "changes": "--change",
    "num_beams": "--beams",
    "quantization_config": "--quantize",
    "scoring": "--score-by",
}
#: Those that are, where messages say which value to pass.
FLAGS: Final = frozenset(
    "attn_implementation device device_map documents embedder gguf_file hops max_new_tokens method "
    "no_repeat_ngram_size on_missing_documents on_overflow rebuild send_documents temperature "
    "template workers".split()
)


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument as a message names it: as Python code does, and after it the flag.

    ``num_beams=1 (--beams 1)``. A name alone that is the flag's too, but for dashes, stands alone.

    Attributes:
        name: of the parameter.
        value: what it was given, or should be given; nothing by default.
        python: how Python code says it, where that is not ``name`` or ``name=value``.
    """

    name: str
    value: Any = _NO_VALUE
    python: str | None = None

    def __str__(self) -> str:
        has_value = self.value is not _NO_VALUE
        written = f"{self.name}={quoted(self.value)}" if has_value else self.name
        flag = RENAMED_FLAGS.get(self.name)
        if flag is None and has_value and self.name in FLAGS:
            flag = f"--{self.name.replace('_', '-')}"
        if flag is not None and has_value and self.value is not True:
            flag = f"{flag} {self.value}"
        return (self.python or written) + (f" ({flag})" if flag else "")


class WordedException(Exception):  # noqa: N818 - of warnings too
    """An error or a warning whose message is made of parts.

    Attributes:
        parts: text and `Argument`s; together they are the message.
    """

    def __init__(self, *parts: str | Argument) -> None:
        super().__init__("".join(map(str, parts)))
        self.parts = parts

    @property
    def parameter(self) -> str | None:
        """The parameter that the message is about: the one it begins with."""
        first = self.parts[0] if self.parts else None
        return first.name if isinstance(first, Argument) else None


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


def quoted(value: object) -> str:
    """The beginning of a value's `repr`: what was passed by mistake may be a prompt."""
    return shortened(repr(value), _MOST_QUOTED)
