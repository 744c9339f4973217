"""Which documents an answer names."""

from __future__ import annotations

import re

__all__ = ["cites"]

_GROUP = re.compile(r"\(([^()]*)\)")


def cites(answer: str, title: str | None) -> bool:
    """Whether an answer names a title in parentheses: ``(Lyon) On the Rhône.``

    Several titles may share parentheses, with semicolons between them. Upper and lower case, and
    what kind of whitespace there is, make no difference.
    """
    wanted, text = _normal(title or ""), _normal(answer)
    if not wanted:
        return False
    if f"({wanted})" in text:  # a title may hold parentheses itself
        return True
    named = (part.strip() for group in _GROUP.findall(text) for part in group.split(";"))
    return wanted in named


def _normal(text: str) -> str:
    return " ".join(text.casefold().split())
