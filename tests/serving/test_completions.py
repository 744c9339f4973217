"""Completions: text that the model goes on with."""

from __future__ import annotations

from typing import Any

from rag_middle import ContextPrompt, Document
from tests.serving.conftest import Served


def complete(server: Served, prompt: Any, **body: Any) -> Any:
    return server.client.completions.create(model="tested", prompt=prompt, max_tokens=4, **body)


def test_several_prompts_have_answers_in_their_order(server: Served) -> None:
    texts = ["The fox", "The lazy dog jumps over", "A"]
    answer = complete(server, texts, n=2)
    expected = [server.model.generate(t, template="raw", max_new_tokens=4) for t in texts]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3, 4, 5]
    assert [c.text for c in answer.choices] == [r.text for r in expected for _ in range(2)]
    assert answer.usage.prompt_tokens == sum(result.usage.prompt_tokens for result in expected)


def test_each_of_several_prompts_has_the_seeds_of_one(server: Served) -> None:
    answer = complete(server, ["A", "The fox"], n=2, seed=10, temperature=1.0)
    alone = complete(server, "The fox", n=2, seed=10, temperature=1.0)
    assert [choice.rag_middle["seed"] for choice in answer.choices] == [10, 11, 10, 11]
    assert [choice.text for choice in answer.choices[2:]] == [c.text for c in alone.choices]


def test_documents_stand_before_the_text(server: Served, documents: list[Document]) -> None:
    question = "Question: which river?"
    sent = [{"title": d.title, "text": d.text} for d in documents]
    answer = complete(server, question, extra_body={"documents": sent, "method": "pine"})
    prompt = ContextPrompt("", documents, question)
    expected = server.model.generate(prompt, template="raw", method="pine", max_new_tokens=4)
    assert answer.choices[0].text == expected.text
    assert answer.usage.prompt_tokens == expected.usage.prompt_tokens
