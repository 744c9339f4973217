"""Where a text ends: stop strings across tokens, whole characters, cancelling."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from rag_middle import ContextPrompt
from rag_middle.generation import RagMiddleModel
from rag_middle.generation.text import Completion, IncrementalText
from tests.tokenizers import byte_level_bpe, metaspace_bpe, wordlevel

TOKENIZERS = {"byte level": byte_level_bpe(), "metaspace": metaspace_bpe(), "words": wordlevel()}
texts = st.text(
    st.sampled_from("aé🦊 你e\n.Th"), min_size=1, max_size=30
)  # characters of one to four bytes


def decode_with(name: str):  # type: ignore[no-untyped-def]
    tokenizer = TOKENIZERS[name]
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=60, deadline=None)
@given(text=texts)
def test_text_of_tokens_one_by_one_is_the_text_of_all(name: str, text: str) -> None:
    decode = decode_with(name)
    ids = TOKENIZERS[name].encode(text, add_special_tokens=False)
    incremental = IncrementalText(decode)
    pieces = [incremental.push(token) for token in ids]
    assert "".join([*pieces, incremental.flush()]) == decode(ids)
    assert not any("\ufffd" in piece for piece in pieces)


def complete(text: str, stops: Sequence[str], *, cut: int) -> tuple[list[str], Completion]:
    """Pieces as they are let go, for `text` in tokens of `cut` characters."""
    tokens = [text[start : start + cut] for start in range(0, len(text), cut)]
    completion = Completion(lambda ids: "".join(tokens[i] for i in ids), {}, stops)
    pieces = []
    for token in range(len(tokens)):
        completion.push(token)
        pieces.append(completion.take())
    completion.finish("length")
    pieces.append(completion.take())
    return pieces, completion


def test_the_beginning_of_a_stop_string_is_held_back() -> None:
    pieces, _ = complete("ab\n\nQuestion", ["\n\nQ"], cut=1)
    assert pieces[:5] == ["a", "b", "", "", ""]
    pieces, _ = complete("a\n\nA", ["\n\nQ"], cut=1)
    assert pieces == ["a", "", "", "\n\nA", ""]


@settings(max_examples=150, deadline=None)
@given(
    text=st.text("ab", max_size=25),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    cut=st.integers(1, 4),
)
def test_nothing_of_a_stop_string_ever_gets_out(text: str, stops: list[str], cut: int) -> None:
    pieces, completion = complete(text, stops, cut=cut)
    assert "".join(pieces) == completion.text
    assert text.startswith(completion.text)
    assert not any(stop in completion.text for stop in stops)
    assert (completion.stop is None) == (completion.text == text)


def test_generation_ends_at_a_stop_string(model: RagMiddleModel, prompt: ContextPrompt) -> None:
    free = model.generate(prompt, max_new_tokens=30)
    at = next(i for i in range(4, 30) if free.text[i : i + 3] not in free.text[: i + 2])
    stop = free.text[at : at + 3]

    ended = model.generate(prompt, max_new_tokens=30, stop=["not there", stop])

    assert ended.text == free.text[:at]
    assert (ended.finish_reason, ended.stop) == ("stop", stop)
    assert free.token_ids[: len(ended.token_ids)] == ended.token_ids
    assert len(ended.token_ids) < 30
    assert model.tokenizer.decode(ended.token_ids[:-1]).find(stop) < 0  # no token too many


def test_a_special_token_may_be_a_stop_string(
    model: RagMiddleModel, llama: PreTrainedModel
) -> None:
    """Its text is never shown, so it is found by its id."""
    end = model.tokenizer.convert_tokens_to_ids("<|im_end|>")
    said = iter([70, 71, end, 72])

    def force(module: object, args: object, output: torch.Tensor) -> torch.Tensor:
        forced = torch.full_like(output, -1e4)
        forced[..., next(said)] = 0
        return forced

    with llama.lm_head.register_forward_hook(force):
        ended = model.generate("Why?", max_new_tokens=4, stop=["<|im_end|>"])
    assert (ended.finish_reason, ended.stop) == ("stop", "<|im_end|>")
    assert ended.token_ids == (70, 71, end)
    assert ended.text == model.tokenizer.decode([70, 71])


def test_a_beam_search_stops_at_stop_strings(model: RagMiddleModel, prompt: ContextPrompt) -> None:
    free = model.generate(prompt, max_new_tokens=12, num_beams=3)
    stop = free.text[3:5]
    ended = model.generate(prompt, max_new_tokens=12, num_beams=3, stop=stop)
    assert stop not in ended.text
    assert "Question" not in free.text  # which the prompt holds
    undisturbed = model.generate(prompt, max_new_tokens=12, num_beams=3, stop="Question")
    assert undisturbed.token_ids == free.token_ids
