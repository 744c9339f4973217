"""What all methods share knows none of them: a new one changes nothing there."""

import re
from pathlib import Path

import pytest

import rag_middle
from rag_middle.methods import METHODS

SHARED = sorted((Path(rag_middle.__file__).parent / "attention").glob("*.py"))
NAMES = [
    form
    for name, method in METHODS.items()
    for form in (name, method.__name__, method.info.title.split(" (")[0])
    if form.lower() not in ("none", "compose", "permutation")  # words of every day, too
]


@pytest.mark.parametrize("file", SHARED, ids=lambda file: file.name)
def test_no_method_is_named(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    named = [name for name in NAMES if re.search(rf"\b{re.escape(name)}\b", text, re.IGNORECASE)]
    assert not named
