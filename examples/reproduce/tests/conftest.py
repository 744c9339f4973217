"""The tiny models of the package's own tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from tests.evaluation.conftest import model
from tests.families import FAMILIES
from tests.reader import reader_path

__all__ = ["family_model", "model"]


@pytest.fixture(autouse=True)
def _small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model of trials, where none is named, is one that answers in milliseconds."""
    path = str(reader_path())
    monkeypatch.setattr("rag_middle_reproduce.__main__.default_model", lambda: path)


@pytest.fixture(scope="session")
def family_model() -> Callable[..., Any]:
    """``family_model(name, attn_implementation=None)``: one model per pair."""

    @cache
    def build(name: str, attn_implementation: str | None = None) -> Any:
        return FAMILIES[name].build(attn_implementation or FAMILIES[name].implementations[0])

    return build
