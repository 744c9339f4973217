"""Completions: text that the model goes on with."""

from __future__ import annotations

import pytest

from rag_middle import ContextPrompt, Document
from tests.serving.conftest import Served


def test_a_text_goes_on_as_with_generate(server: Served) -> None:
    answer = server.client.completions.create(model="tested", prompt="The fox", max_tokens=6)
    expected = server.model.generate("The fox", template="raw", max_new_tokens=6)
    assert answer.choices[0].text == expected.text
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == expected.usage.prompt_tokens


def test_several_prompts_have_answers_in_their_order(server: Served) -> None:
    texts = ["The fox", "The lazy dog jumps over", "A"]
    answer = server.client.completions.create(model="tested", prompt=texts, max_tokens=4, n=2)
    expected = [server.model.generate(t, template="raw", max_new_tokens=4) for t in texts]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3, 4, 5]
    assert [choice.text for choice in answer.choices] == [
        result.text for result in expected for _ in range(2)
    ]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == sum(result.usage.prompt_tokens for result in expected)


def test_each_of_several_prompts_has_the_seeds_of_one(server: Served) -> None:
    answer = server.client.completions.create(
        model="tested", prompt=["A", "The fox"], max_tokens=4, n=2, seed=10, temperature=1.0
    )
    alone = server.client.completions.create(
        model="tested", prompt="The fox", max_tokens=4, n=2, seed=10, temperature=1.0
    )
    seeds = [choice.rag_middle["seed"] for choice in answer.choices]  # type: ignore[attr-defined]
    assert seeds == [10, 11, 10, 11]
    assert [choice.text for choice in answer.choices[2:]] == [c.text for c in alone.choices]


def test_documents_stand_before_the_text(server: Served, documents: list[Document]) -> None:
    answer = server.client.completions.create(
        model="tested",
        prompt="Question: which river?",
        max_tokens=4,
        extra_body={
            "documents": [{"title": d.title, "text": d.text} for d in documents],
            "method": "pine",
        },
    )
    prompt = ContextPrompt("", documents, "Question: which river?")
    expected = server.model.generate(prompt, template="raw", method="pine", max_new_tokens=4)
    assert answer.choices[0].text == expected.text
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == expected.usage.prompt_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_have_the_older_shape(server: Served, stream: bool) -> None:
    generated = server.model.generate("The fox", template="raw", max_new_tokens=4)
    score = server.model.score("The fox", generated.token_ids, template="raw")
    answer = server.client.completions.create(
        model="tested", prompt="The fox", max_tokens=4, logprobs=2, stream=stream
    )
    choices = [c for chunk in answer for c in chunk.choices] if stream else answer.choices
    parts = [choice.logprobs for choice in choices if choice.logprobs]
    values = [value for part in parts for value in part.token_logprobs]
    tokens = [token for part in parts for token in part.tokens]
    assert values == pytest.approx(score.log_probabilities, abs=1e-4)
    assert "".join(tokens) == generated.text
    assert all(len(top) <= 2 for part in parts for top in part.top_logprobs)


def test_tokens_are_no_prompt(server: Served) -> None:
    response = server.post({"model": "tested", "prompt": [1, 2]}, "completions")
    assert response.status_code == 400


def test_of_parts_of_characters_with_one_text_the_likeliest_stays(server: Served) -> None:
    body = {"model": "tested", "prompt": "Hello", "max_tokens": 3, "logprobs": 20}
    logprobs = server.post(body, "completions").json()["choices"][0]["logprobs"]
    assert "\N{REPLACEMENT CHARACTER}" in logprobs["tokens"]
    for token, value, top in zip(
        *(logprobs[name] for name in ("tokens", "token_logprobs", "top_logprobs")), strict=True
    ):
        assert top[token] == value  # greedy
