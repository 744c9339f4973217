"""Text that looks like control tokens, with every kind of added token that tokenizers have."""

from collections.abc import Callable

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rag_middle.documents import ContextPrompt
from rag_middle.errors import PromptError
from rag_middle.tokens import encode
from rag_middle.tokens.text import TextEncoder
from tests.tokenizers import byte_level_bpe, metaspace_bpe, sentencepiece, wordlevel

FLAGS = ("lstrip", "rstrip", "single_word", "normalized")


def document_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    prompt = ContextPrompt("Read:", [text], "Why?", separator="")
    return list(encode(tokenizer, prompt).documents_ids[0])


def assert_inert(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    ids = document_ids(tokenizer, text)
    assert not {token for token in ids if token in tokenizer.added_tokens_decoder}
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("text", ["<x>", " <x> ", "a<x>b", "a <x> b", "\n <x>\n<x><x>", "<<x>>"])
def test_added_tokens_are_inert_with_any_flag(flag: str, special: bool, text: str) -> None:
    token = AddedToken("<x>", special=special, **{flag: True})
    assert_inert(byte_level_bpe(added=[token]), text)


def test_tokens_matched_after_normalisation_are_inert() -> None:
    tokenizer = byte_level_bpe(lowercase=True, added=[AddedToken("<x!>", normalized=True)])
    ids = document_ids(tokenizer, "Do <X!> and <THINK>")
    assert not {token for token in ids if token in tokenizer.added_tokens_decoder}
    assert tokenizer.decode(ids) == "do <x!> and <think>"


def test_text_without_control_tokens_stays_whole() -> None:
    for tokenizer in (byte_level_bpe(), metaspace_bpe(), sentencepiece(), wordlevel()):
        assert TextEncoder(tokenizer).inert_pieces("the <lazy> dog [s] |") == [
            "the <lazy> dog [s] |"
        ]


@pytest.mark.parametrize("literal", ["  ", "\n\n", "▁▁", "covid", "naïve", "新冠"])
def test_added_whitespace_and_words_are_ordinary_vocabulary(literal: str) -> None:
    tokenizer = byte_level_bpe(added=[AddedToken(literal, normalized=False)])
    expected = tokenizer.convert_tokens_to_ids(literal)
    assert expected in document_ids(tokenizer, f"a{literal}b")


@pytest.mark.parametrize("character", ["☎", "\x02"])
def test_a_control_token_of_one_character_is_refused_by_name(character: str) -> None:
    tokenizer = byte_level_bpe(added=[AddedToken(character, special=True)])
    with pytest.raises(PromptError, match=r"control token of this tokenizer"):
        document_ids(tokenizer, f"a{character}b")


def test_unknown_characters_are_allowed_and_the_unknown_tokens_name_is_text() -> None:
    tokenizer = wordlevel()
    assert document_ids(tokenizer, "Paris ☃") == [
        tokenizer.convert_tokens_to_ids("Paris"),
        tokenizer.unk_token_id,
    ]
    fallback = metaspace_bpe()
    assert_inert(fallback, "the <unk> token")


def test_an_unknown_token_that_no_character_needs_is_a_control_token() -> None:
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    ends = AddedToken("<|endoftext|>", special=True)
    tokenizer = byte_level_bpe(added=[ends], chat_template=template)
    tokenizer.unk_token = tokenizer.pad_token = ends.content
    halves = [{"role": "system", "content": "a <|endof"}, {"role": "user", "content": "text|> b"}]
    tokenized = encode(tokenizer, halves, template="chat")
    assert tokenizer.unk_token_id not in tokenized.input_ids
    assert_inert(tokenizer, "the <|endoftext|> token")


def test_a_token_of_the_vocabulary_that_is_only_named_as_special_is_inert() -> None:
    pieces = ["<unk>", "a", "b", "</s>", "[X]", "!", "the"]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    tokenizer.eos_token, tokenizer.sep_token = "</s>", "[X]"
    # What is no symbol stays text, and a name without a token names no other one.
    tokenizer.pad_token, tokenizer.cls_token, tokenizer.mask_token = "!", "the", "<nowhere>"
    ids = document_ids(tokenizer, "a </s> ! the [X] b ☃")
    assert not {tokenizer.eos_token_id, tokenizer.sep_token_id}.intersection(ids)
    assert {tokenizer.pad_token_id, tokenizer.cls_token_id, vocabulary["<unk>"]} < {*ids}


@pytest.mark.parametrize("build", [byte_level_bpe, metaspace_bpe, sentencepiece])
def test_half_a_character_reads_as_a_replacement_character(
    build: Callable[[], PreTrainedTokenizerBase],
) -> None:
    tokenizer = build()
    assert document_ids(tokenizer, "the\ud800") == document_ids(tokenizer, "the\ufffd")
    assert document_ids(tokenizer, "\ud83e\udd8a") == document_ids(tokenizer, "🦊")
    assert document_ids(tokenizer, "\udc00<|im_end|>\ud800") == document_ids(
        tokenizer, "\ufffd<|im_end|>\ufffd"
    )
