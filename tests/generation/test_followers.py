"""Batches whose prompts are followed one by one: their text, their tokens, an end of their own."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from rag_middle import ContextPrompt
from rag_middle.generation import Follower, Generation, RagMiddleModel, TokenLogProbability


class Notes:
    """What a follower was told, in order."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.tokens: list[TokenLogProbability] = []
        self.results: list[Generation] = []
        self.follower = Follower(on_text=self._text, on_end=self.results.append)

    def _text(self, text: str, tokens: Sequence[TokenLogProbability]) -> None:
        assert not self.results, "nothing comes after the end"
        self.pieces.append(text)
        self.tokens += tokens


@pytest.mark.parametrize("method", ["none", "pine", "attention_buckets"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.one_in(3)
def test_followers_get_what_the_batch_returns(
    model: RagMiddleModel, prompts: list[ContextPrompt], method: str, temperature: float
) -> None:
    options: dict[str, Any] = {
        "method": method,
        "max_new_tokens": 6,
        "temperature": temperature,
        "seed": 3,
    }
    notes = [Notes() for _ in prompts]
    followers = [each.follower for each in notes]
    results = model.batch(prompts, followers=followers, logprobs=True, **options)
    plain = model.batch(prompts, **options)
    assert [result.text for result in results] == [result.text for result in plain]
    for note, result in zip(notes, results, strict=True):
        assert "".join(note.pieces) == result.text
        assert note.results == [result]
        assert tuple(token.token_id for token in note.tokens) == result.token_ids


def test_one_prompt_is_cancelled_and_the_others_go_on(
    model: RagMiddleModel, prompts: list[ContextPrompt]
) -> None:
    notes = [Notes() for _ in prompts]
    cancel = threading.Event()
    notes[1].follower = Follower(
        on_text=lambda *_: cancel.set(), on_end=notes[1].results.append, cancel=cancel
    )
    results = model.batch(prompts, max_new_tokens=12, followers=[each.follower for each in notes])
    alone = [model.generate(prompt, max_new_tokens=12) for prompt in prompts]
    assert results[1].finish_reason == "cancelled"
    assert notes[1].results == [results[1]]
    assert 0 < results[1].usage.completion_tokens < 12
    assert alone[1].text.startswith(results[1].text)
    for index in (0, 2, 3):
        assert results[index].text == alone[index].text


def test_a_prompt_that_ends_is_told_before_the_others(
    model: RagMiddleModel, prompts: list[ContextPrompt]
) -> None:
    stop = model.generate(prompts[0], max_new_tokens=4).text[-1]
    lengths = [
        model.generate(prompt, max_new_tokens=12, stop=stop).usage.completion_tokens
        for prompt in prompts
    ]
    assert len(set(lengths)) > 1
    order: list[int] = []
    followers = [
        Follower(on_text=lambda *_: None, on_end=lambda _, index=index: order.append(index))
        for index in range(len(prompts))
    ]
    model.batch(prompts, max_new_tokens=12, stop=stop, followers=followers)
    assert [lengths[index] for index in order] == sorted(lengths)
