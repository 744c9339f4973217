"""Where the bundled reader lies."""

from __future__ import annotations

from pathlib import Path

import pytest

import rag_middle.reader
from rag_middle.errors import ModelNotFoundError
from rag_middle.reader import TRAINED_DOCUMENTS, reader_path
from training.train_reader import STAGES


def test_the_weights_are_in_the_package_and_small() -> None:
    weights = reader_path() / "model.safetensors"
    assert weights.stat().st_size < 10_000_000


def test_an_installation_without_them_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rag_middle.reader, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(ModelNotFoundError, match="--model"):
        reader_path()


def test_most_documents_of_its_training_are_those_of_the_last_stage():
    assert STAGES[-1].documents[1] == TRAINED_DOCUMENTS
