"""The bundled reader, and how many documents it saw in each call."""

from typing import Any

import pytest

from rag_middle import RagMiddleModel
from rag_middle.generation import prompts
from tests.reader import reader_path


@pytest.fixture(scope="session")
def reader() -> RagMiddleModel:
    return RagMiddleModel.from_pretrained(reader_path())


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Documents of every prompt that a model was given from here on."""
    counts: list[int] = []
    check = prompts.check_documents

    def noted(method: Any, layout: Any, *rest: Any, **named: Any) -> None:
        counts.append(len(layout.documents))
        check(method, layout, *rest, **named)

    monkeypatch.setattr(prompts, "check_documents", noted)
    return counts
