"""The tiny models of the package's own tests."""

from __future__ import annotations

import pytest

from tests.conftest import family_model
from tests.evaluation.conftest import model
from tests.reader import reader_path

__all__ = ["family_model", "model"]


@pytest.fixture(autouse=True)
def _small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model of trials, where none is named, is one that answers in milliseconds."""
    path = str(reader_path())
    monkeypatch.setattr("rag_middle_reproduce.__main__.default_model", lambda: path)
