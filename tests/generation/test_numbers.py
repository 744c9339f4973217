"""Documents that say their rank, under methods that keep the order from mattering."""

import warnings
from collections.abc import Sequence

import pytest

from rag_middle import ContextPrompt, RagMiddleModel
from rag_middle.generation import NumberedDocumentsWarning
from tests.reader import reader_path

FACTS = ["Aldgrove Harfield costs $41.", "Bramstow Melcroft costs $873."]
QUESTION = "Question: How much does Bramstow Melcroft cost?\nAnswer:"


@pytest.fixture(scope="module")
def reader() -> RagMiddleModel:
    return RagMiddleModel.from_pretrained(reader_path())


@pytest.mark.parametrize(
    "form", ["[{}] {}", "Source {}:\n{}\n", "{}. {}", "({}) {}", "Document [{}](Title: a) {}"]
)
@pytest.mark.parametrize("start", [0, 1])
def test_numbered_documents_are_warned_of(reader: RagMiddleModel, form: str, start: int) -> None:
    texts = [form.format(number, text) for number, text in enumerate(FACTS, start=start)]
    with pytest.warns(NumberedDocumentsWarning, match="pine the order") as warned:
        reader.generate(ContextPrompt("", texts, QUESTION), method="pine", max_new_tokens=1)
    said = str(warned[0].message)
    assert f"numbered from {start} to {start + len(texts) - 1}," in said
    assert not any(word in said for word in FACTS[0].split())  # a server logs it, but no prompt


@pytest.mark.parametrize(
    ("method", "texts"),
    [
        ("none", ["[1] a", "[2] b"]),
        ("pine", ["[2] a", "[1] b"]),
        ("pine", ["1.5 a", "2.5 b"]),
        ("pine", ["file: 0.txt", "file: 1.txt"]),
        ("pine", FACTS),
    ],
)
def test_others_are_not(reader: RagMiddleModel, method: str, texts: Sequence[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reader.generate(ContextPrompt("", texts, QUESTION), method=method, max_new_tokens=1)
