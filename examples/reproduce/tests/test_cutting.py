"""Long prompts lose their middle."""

from __future__ import annotations

import pytest
from rag_middle_reproduce.tasks.cutting import cut_middle

from rag_middle import ConfigError, ContextPrompt, Document, RagMiddleModel

DIGITS = "".join(str(number % 10) for number in range(200))


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
