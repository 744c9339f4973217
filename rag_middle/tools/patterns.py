"""Regular expressions of JSON schemas, so that the engine takes them for what they say there.

JSON Schema means those of ECMAScript, Python's checkers read Python's, the engine Rust's. Where the
three part without an error, the engine would write what the schema does not allow.
"""

from __future__ import annotations

import re

from rag_middle.errors import UnsupportedGenerationError
from rag_middle.wording import Argument

# An escape is one piece, and so is everything from a bracket on; the rest are characters. A piece
# that does not end goes to the end of the text: looking again from each sign in it would take the
# square of the length.
_PIECE = re.compile(
    r"(?P<named>\\[pP](?:\{[^}]*+(?:\}|\Z)|\w))|\\(?:x\{|z)(?P<other>)|\\."
    r"|\[\^?(?P<first>\]?)(?P<inner>(?:\\(?:.|\Z)|[^\]\\])*+)(?:\]|\Z)"
    r"|\(\?(?P<flags>[a-zA-Z-]+)[:)]|(?:[*+?}])(?P<possessive>\+)|.",
    re.DOTALL,
)
_SETS = re.compile(r"\\.|(?P<operator>\[|&&|--|~~)", re.DOTALL)
_CONTROL = [chr(code) for code in range(32) if chr(code) != "\n"]


def read_alike(pattern: str) -> str:
    """The expression as the engine has to be given it.

    Raises:
        UnsupportedGenerationError: the engine would read it as another one.
    """
    return _PIECE.sub(_piece, pattern)


def _piece(piece: re.Match[str]) -> str:
    inner = piece["inner"]
    if (
        piece["possessive"]
        or piece["other"] is not None
        or piece["first"]
        or {*(piece["flags"] or "")} - {*"ims-"}
        or (inner and any(part["operator"] for part in _SETS.finditer(inner)))
    ):
        raise UnsupportedGenerationError(
            Argument("response_format"),
            f" or the parameters of a tool hold a pattern with {piece[0][:40]!r}, which engines "
            "read differently. Write [ in brackets as \\[, and leave out sets within sets, "
            "possessive repetition and flags other than i, m and s.",
        )
    if piece["named"] or (inner is not None and _lets_quotes_pass(piece[0])):
        # Without one of them. Nobody misses the zero byte in an answer.
        return f"[{piece[0]}&&[^\\x00]]"
    return piece[0]


def _lets_quotes_pass(characters: str) -> bool:
    """Whether the engine would also write quotation marks and backslashes for these characters.

    It does in place of those that hold every control character, or all but the line end.
    """
    try:
        expression = re.compile(re.sub(r"\|+", "|", characters))  # Python warns of two
    except re.error:
        return True  # classes by name, which Python does not know
    return all(map(expression.match, _CONTROL)) and not all(map(expression.match, '"\\'))
