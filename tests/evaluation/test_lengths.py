"""Long prompts lose their middle where a task wants that, and are refused otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from rag_middle import ConfigError, ContextPrompt, Document, RagMiddleModel
from rag_middle.evaluation import Item, Measurement, run
from rag_middle.evaluation.conditions import Condition
from rag_middle.evaluation.lengths import cut_middle
from rag_middle.evaluation.tasks import Task

DIGITS = "".join(str(number % 10) for number in range(200))


@dataclass(frozen=True, kw_only=True)
class _Long(Task):
    """One document that no tiny model takes; a token is a letter."""

    name: ClassVar[str] = "long"
    version: ClassVar[int] = 1
    title: ClassVar[str] = "Long"
    max_new_tokens: ClassVar[int] = 2
    cuts_middle: ClassVar[bool] = True

    letters: int = 100_000
    provenance: ClassVar[str] = "made here"  # type: ignore[assignment]
    num_positions: ClassVar[int] = 0  # type: ignore[assignment]

    def items(self, limit: int | None, seed: int) -> list[Item]:
        document = Document("x" * self.letters)
        return [Item(id="0", question="Why?", answers=("x",), others=(document,))]

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        return ContextPrompt("Read. ", item.documents, item.question)


def test_the_halves_that_fit_stay(model: RagMiddleModel) -> None:
    prompt = ContextPrompt("Begin. ", [Document(DIGITS)], "End.", separator="\n")
    overhead = len(model.encode(prompt, method="none")) - len(prompt.text)
    short = cut_middle(model, prompt, 100 + overhead)
    assert short.prefix == "Begin. "
    assert short.suffix == "End."
    # 100 letters: 7 and 5 of them, with the line's end, are not the document's.
    assert short.documents[0].text == DIGITS[:43] + DIGITS[-45:]
    assert len(model.encode(short, method="none")) <= 100 + overhead
    assert cut_middle(model, prompt, len(prompt.text) + overhead) is prompt


def test_documents_within_the_cut_are_left_out(model: RagMiddleModel) -> None:
    prompt = ContextPrompt("", [letter * 50 for letter in "abcd"], "?", separator=" ")
    short = cut_middle(model, prompt, 160)
    assert [document.text[0] for document in short.documents][:: len(short.documents) - 1] == [
        "a",
        "d",
    ]
    assert len(model.encode(short, method="none")) <= 160
    with pytest.raises(ConfigError, match="No prompt fits 3 tokens"):
        cut_middle(model, prompt, 3)


def test_a_run_cuts_the_prompts_of_a_task_that_wants_it(
    model: RagMiddleModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = run(model, _Long(), measurement=Measurement(limit=1))
    assert len(results.records) == 1
    monkeypatch.setattr(_Long, "cuts_middle", False)
    with pytest.raises(ConfigError, match="do not fit"):
        run(model, _Long(letters=99_999), measurement=Measurement(limit=1))
