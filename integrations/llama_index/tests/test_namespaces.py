"""The distribution's other namespaces, and its example, which uses them."""

from __future__ import annotations

import copy
import json
import pickle
import runpy
import sys
import tomllib
from pathlib import Path

import pytest
from llama_index.embeddings.rag_middle import RagMiddleEmbedding
from llama_index.llms import rag_middle
from llama_index.postprocessor.rag_middle import MarkDocuments

from tests.reader import reader_path

ROOT = Path(__file__).parent.parent


def test_classes_are_the_same_in_every_namespace() -> None:
    assert MarkDocuments is rag_middle.MarkDocuments
    assert RagMiddleEmbedding is rag_middle.RagMiddleEmbedding
    modules = {path.parent for path in (ROOT / "llama_index").glob("**/__init__.py")}
    assert all(module.name == "rag_middle" for module in modules)


def test_the_example_answers_from_a_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    [example] = (ROOT / "examples").glob("*.py")
    (tmp_path / "page.txt").write_text("Nantes lies on the Loire.", encoding="utf-8")
    (tmp_path / "other.txt").write_text("Lyon lies on the Rhone.", encoding="utf-8")
    question = "On which river does Nantes lie?"
    arguments = [str(example), str(tmp_path), question, "--model", str(reader_path())]
    monkeypatch.setattr(sys, "argv", arguments)
    runpy.run_path(str(example), run_name="__main__")
    assert "(2 documents under pine)" in capsys.readouterr().out


def test_the_example_is_in_the_distribution() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert tool["llamahub"]["contains_example"]
    assert "examples/" in tool["hatch"]["build"]["targets"]["sdist"]["include"]


def test_embeddings_are_saved_copied_and_sent_to_workers() -> None:
    embedding = RagMiddleEmbedding(embed_batch_size=7)
    vector = embedding.get_text_embedding("Nantes")
    saved = RagMiddleEmbedding.from_dict(json.loads(json.dumps(embedding.to_dict())))
    for copied in (saved, pickle.loads(pickle.dumps(embedding)), copy.deepcopy(embedding)):
        assert isinstance(copied, RagMiddleEmbedding)
        assert copied.embed_batch_size == 7
        assert copied.get_text_embedding("Nantes") == vector
