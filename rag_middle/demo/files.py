"""Where the results of the demonstration lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["DemoFiles"]


@dataclass(frozen=True, slots=True)
class DemoFiles:
    """Where the demonstration's results lie.

    Attributes:
        html: the page.
        png: the picture.
        json: everything as data.
    """

    html: Path
    png: Path
    json: Path
