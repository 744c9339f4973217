"""Which documents an answer names."""

from __future__ import annotations

import re

__all__ = ["cites"]

_GROUP = re.compile(r"\(([^()]*)\)")


def cites(answer: str, title: str | None) -> bool:
    """Whether an answer names a title: ``(Lyon) On the Rhône.`` or ``Lyon: on the Rhône.``

    In parentheses anywhere, where several titles may stand with semicolons between them; before a
    colon where a line begins. Upper and lower case, and what kind of whitespace there is, make no
    difference.
    """
    wanted, text = _normal(title or ""), _normal(answer)
    if not wanted:
        return False
    if f"({wanted})" in text:  # a title may hold parentheses itself
        return True
    if any(_normal(line).startswith(f"{wanted}:") for line in answer.splitlines()):
        return True
    named = (part.strip() for group in _GROUP.findall(text) for part in group.split(";"))
    return wanted in named


def _normal(text: str) -> str:
    return " ".join(text.casefold().split())
