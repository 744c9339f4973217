"""Methods that ask another prompt, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rag_middle import RagMiddleModel, mark
from tests.serving.conftest import Served, serving

DOCUMENTS = ["The fox is red.", "The owl is grey."]


@pytest.fixture(scope="module")
def served(tiny_model: RagMiddleModel) -> Iterator[Served]:
    with serving(tiny_model, ("none", "prompt_repetition")) as server:
        yield server


@pytest.mark.parametrize("marked", [False, True])
def test_the_answer_is_that_of_the_prompt_written_twice(served: Served, marked: bool) -> None:
    question = "Which is red?"
    if marked:
        content = "".join(map(mark, DOCUMENTS)) + question
        answer = served.chat(content, method="prompt_repetition", max_tokens=4)
    else:
        documents = [{"text": text} for text in DOCUMENTS]
        answer = served.chat(
            question, method="prompt_repetition", max_tokens=4, documents=documents
        )
    plain = served.chat(question, method="none", max_tokens=4)
    assert answer.rag_middle["documents"] == 4  # of both copies
    assert answer.rag_middle["document_order"] == [0, 1, 0, 1]
    assert answer.usage.prompt_tokens > plain.usage.prompt_tokens
    if marked:
        messages = [{"role": "user", "content": content}]
        own = served.model.generate(messages, method="prompt_repetition", max_new_tokens=4)
        assert answer.usage.prompt_tokens == own.usage.prompt_tokens
        assert answer.choices[0].message.content == own.text


def test_an_answer_is_as_long_as_the_repeated_prompt_leaves_room_for(served: Served) -> None:
    """Without `max_tokens`, where the window holds the prompt twice, and little more."""
    window = served.model.context_window
    assert window is not None
    question = "fox " * (window // 3)
    while served.model.count_tokens(question) * 2 > window - 30:
        question = question.removesuffix("fox ")
    answer = served.chat(question, method="prompt_repetition")
    assert answer.usage.total_tokens <= window


def test_text_without_a_template_is_repeated_too(served: Served) -> None:
    answer = served.client.completions.create(
        model="tested", prompt="One.", max_tokens=4, extra_body={"method": "prompt_repetition"}
    )
    own = served.model.generate(
        "One.", method="prompt_repetition", template="raw", max_new_tokens=4
    )
    assert answer.choices[0].text == own.text
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == own.usage.prompt_tokens
