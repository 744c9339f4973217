"""Documents that say their rank, under methods that keep the order from mattering."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import pytest

from rag_middle import ContextPrompt, RagMiddleModel
from rag_middle.generation import NumberedDocumentsWarning
from rag_middle.methods import METHODS
from tests.reader import reader_path

FACTS = ["Aldgrove Harfield costs $41.", "Bramstow Melcroft costs $873."]
QUESTION = "Question: How much does Bramstow Melcroft cost?\nAnswer:"
ORDER_FREE = [
    "ape",
    "parallel_context_windows",
    "pine",
    "rotor",
    "set_based_prompting",
    "structured_prompting",
]


@pytest.fixture(scope="module")
def reader() -> RagMiddleModel:
    return RagMiddleModel.from_pretrained(reader_path())


def test_these_methods_are_free_of_order() -> None:
    single = {name: method for name, method in METHODS.items() if name != "compose"}
    made = {name: method.example() for name, method in single.items()}
    assert sorted(name for name, method in made.items() if method.order_free) == ORDER_FREE


@pytest.mark.parametrize("method", ORDER_FREE)
def test_their_answers_are_the_same_in_any_order(reader: RagMiddleModel, method: str) -> None:
    prompts = [ContextPrompt("", order, QUESTION) for order in (FACTS, FACTS[::-1])]
    made = dict(METHODS.items())[method].example()
    first, second = (reader.score(prompt, " Bramstow", method=made) for prompt in prompts)
    # float32: sums run in another order
    assert first.log_probabilities == pytest.approx(second.log_probabilities, abs=1e-4)


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
        ("pine", ["1984 a", "2 b"]),
        ("pine", ["file: 0.txt", "file: 1.txt"]),
        ("pine", ["[1] alone"]),
        ("pine", FACTS),
    ],
)
def test_others_are_not(reader: RagMiddleModel, method: str, texts: Sequence[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reader.generate(ContextPrompt("", texts, QUESTION), method=method, max_new_tokens=1)
