"""Raised and lowered text within a line: 10^23, H2O, 1st."""

from __future__ import annotations

import re

__all__ = ["script_text", "touches"]

#: A power, a charge, a footnote's number, or a letter that ends no ordinal (1st, 2e, 3o, 1a).
_RAISED = re.compile(r"[+\-−–±]?\d+(?:[.,]\d+)*[+\-−]?|[+\-−]|[+\-−–]?[b-df-np-zB-DF-NP-Z]")
_LOWERED = re.compile(r"\d+")


def script_text(text: str, before: str, *, raised: bool) -> str:
    """Raised or lowered text as it is written in a line.

    Args:
        text: of it.
        before: the character before it.
        raised: above the line.
    """
    written = text.strip()
    if raised and (before.isalnum() or before in tuple(")]")) and _RAISED.fullmatch(written):
        return f"^{written}"
    if not raised and before.isdigit() and _LOWERED.fullmatch(written):
        return f"_{written}"
    return text


def touches(before: str, after: str) -> bool:
    """Whether two texts side by side would be read as one word or number."""
    return before[-1:].isalnum() and after[:1].isalnum()
