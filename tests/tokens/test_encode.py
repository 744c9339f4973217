"""Prompts to token ids: text is preserved, spans are exact, documents are independent."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from rag_middle.documents import ContextPrompt, Document, mark
from rag_middle.errors import ChatTemplateError, PromptError
from rag_middle.tokens import count_tokens, encode
from tests.tokenizers import (
    CHATML,
    CONTROL_TOKENS,
    GEMMA,
    TEMPLATES,
    TOOL_TOKENS,
    byte_level_bpe,
    metaspace_bpe,
    sentencepiece,
    wordlevel,
)

BUILDERS = {
    "byte-level": byte_level_bpe,
    "byte-level with bos": lambda: byte_level_bpe(bos=True),
    "byte-level with a dummy space": lambda: byte_level_bpe(add_prefix_space=True),
    "prepend": metaspace_bpe,
    "metaspace always": lambda: metaspace_bpe(scheme="always"),
    "metaspace first": lambda: metaspace_bpe(scheme="first"),
    "metaspace never": lambda: metaspace_bpe(scheme="never"),
}
LOSSLESS = tuple(BUILDERS)
MORE = {
    "sentencepiece": sentencepiece,
    "sentencepiece without bytes": lambda: sentencepiece(byte_fallback=False),
    "wordlevel": wordlevel,
}


@cache
def tokenizer_named(name: str) -> PreTrainedTokenizerBase:
    return (BUILDERS | MORE)[name]()


def decoded(tokenizer: PreTrainedTokenizerBase, ids: tuple[int, ...]) -> str:
    text = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text


modest = settings(max_examples=15, derandomize=True, deadline=None)
# "▁" is left out: vocabularies that write a space so cannot tell the two apart.
characters = st.characters(codec="utf-8", exclude_characters="▁")
CONTROL = ("<s>", "</s>", "<pad>", *CONTROL_TOKENS, *TOOL_TOKENS)
texts = st.text(characters, max_size=20) | st.lists(
    st.sampled_from([*CONTROL, "Paris", " is", "<|im_", "end|>", "<", "\n", " ", "☃", "a"]),
    max_size=6,
).map("".join)
some_documents = st.lists(texts, min_size=1, max_size=3)


@pytest.mark.parametrize("name", LOSSLESS)
@modest
@given(prefix=texts, documents=some_documents, suffix=texts)
def test_the_text_is_preserved(name: str, prefix: str, documents: list[str], suffix: str) -> None:
    tokenizer = tokenizer_named(name)
    prompt = ContextPrompt(f"Read:{prefix}", documents, suffix)
    tokenized = encode(tokenizer, prompt)
    text = decoded(tokenizer, tokenized.input_ids).removeprefix("<s>")
    # The dummy space before the whole text belongs to the tokenizer; no other piece gains one.
    assert text.removeprefix(" ") == prompt.text


@pytest.mark.parametrize("name", LOSSLESS)
@modest
@given(documents=some_documents, suffix=texts)
def test_nothing_but_the_tokenizers_own_start_is_added_without_a_prefix(
    name: str, documents: list[str], suffix: str
) -> None:
    tokenizer = tokenizer_named(name)
    tokenized = encode(tokenizer, ContextPrompt("", documents, suffix, separator="."))
    assert list(tokenized.prefix_ids) == tokenizer.encode("")


@pytest.mark.parametrize("name", [*LOSSLESS, *MORE])
@modest
@given(documents=st.lists(texts, min_size=2, max_size=4), data=st.data())
@pytest.mark.one_in(3)
def test_permuting_documents_permutes_their_ids_and_nothing_else(
    name: str, documents: list[str], data: st.DataObject
) -> None:
    tokenizer = tokenizer_named(name)
    prompt = ContextPrompt("Read:\n", documents, "Why?")
    order = data.draw(st.permutations(range(len(documents))))
    before, after = encode(tokenizer, prompt), encode(tokenizer, prompt.permuted(order))
    assert after.documents_ids == tuple(before.documents_ids[index] for index in order)
    assert after.prefix_ids == before.prefix_ids
    assert after.suffix_ids == before.suffix_ids
    assert after == before.select(order)


@pytest.mark.parametrize("name", [*LOSSLESS, *MORE])
@modest
@given(documents=some_documents)
@pytest.mark.one_in(3)
def test_a_span_is_the_documents_own_encoding(name: str, documents: list[str]) -> None:
    tokenizer = tokenizer_named(name)
    tokenized = encode(tokenizer, ContextPrompt("Read:\n", documents, "Why?"))
    for text, ids in zip(documents, tokenized.documents_ids, strict=True):
        alone = encode(tokenizer, ContextPrompt(documents=[text], suffix="?"))
        assert ids == alone.documents_ids[0]
        assert len(ids) == count_tokens(tokenizer, text + "\n\n")


@pytest.mark.parametrize("name", ["prepend", "metaspace always", "metaspace first"])
def test_a_dummy_space_is_written_once(name: str) -> None:
    tokenizer = tokenizer_named(name)
    tokenized = encode(tokenizer, ContextPrompt("Use", ["Paris", "Lyon"], "dog", separator=":"))
    pieces = [tokenized.prefix_ids[1:], *tokenized.documents_ids, tokenized.suffix_ids]
    shown = [tokenizer.convert_ids_to_tokens(list(ids)) for ids in pieces]
    assert ["".join(tokens) for tokens in shown] == ["▁Use", "Paris:", "Lyon:", "dog"]


def test_a_sentencepiece_model_gains_no_spaces() -> None:
    tokenizer = tokenizer_named("sentencepiece")
    prompt = ContextPrompt("Use:", ["the river.", " France", "lazy</s>"], "dog", separator=". ")
    text = "".join(tokenizer.convert_ids_to_tokens(list(encode(tokenizer, prompt).input_ids)))
    assert text.replace("▁", " ") == f" {prompt.text}"


@pytest.mark.parametrize("text", ["dog", "☃dog", "日本 dog", "a dog", ".dog", "</s>dog"])
def test_no_space_is_gained_where_characters_are_unknown(text: str) -> None:
    tokenizer = tokenizer_named("sentencepiece without bytes")
    tokenized = encode(tokenizer, ContextPrompt("Use:", [text], "Paris"))
    for ids in (tokenized.documents_ids[0], tokenized.suffix_ids):
        assert not tokenizer.convert_ids_to_tokens(list(ids))[0].startswith("▁")


class TestTheStart:
    @pytest.mark.parametrize("template", [None, *TEMPLATES])
    @pytest.mark.parametrize("bos", [True, False])
    def test_has_one_bos_where_tokenizer_or_template_writes_one(
        self, template: str | None, bos: bool
    ) -> None:
        tokenizer = byte_level_bpe(bos=bos, chat_template=TEMPLATES.get(template or ""))
        tokenized = encode(tokenizer, ContextPrompt("Read:", ["one"], "Why?"))
        written = bos or template not in (None, "chatml")
        assert tokenized.input_ids.count(tokenizer.bos_token_id) == written
        assert (tokenized.input_ids[0] == tokenizer.bos_token_id) is written

    def test_keeps_the_bos_that_the_caller_wrote(self) -> None:
        tokenizer = tokenizer_named("byte-level with bos")
        prompt = ContextPrompt("<s>Read:", ["one"], "Why?")
        tokenized = encode(tokenizer, prompt, allow_control_tokens=True)
        assert tokenized.input_ids.count(tokenizer.bos_token_id) == 1


class TestRaw:
    def test_control_tokens_of_prefix_and_suffix_can_be_allowed(self) -> None:
        tokenizer = tokenizer_named("byte-level")
        prompt = ContextPrompt("<|im_start|>", ["a</s>"], "b</s>")
        tokenized = encode(tokenizer, prompt, allow_control_tokens=True)
        assert tokenizer.convert_ids_to_tokens([tokenized.input_ids[0]]) == ["<|im_start|>"]
        assert tokenized.suffix_ids[-1] == tokenizer.eos_token_id
        assert tokenizer.eos_token_id not in tokenized.documents_ids[0]

    def test_a_system_text_stands_before_the_prompt(self) -> None:
        tokenizer = tokenizer_named("byte-level")
        assert encode(tokenizer, "Why?", system="Be kind.") == encode(
            tokenizer, ContextPrompt("Be kind.\n\n", suffix="Why?")
        )

    def test_plain_text_is_encoded_as_the_tokenizer_does(self) -> None:
        for name in LOSSLESS:
            tokenizer = tokenizer_named(name)
            text = "The quick brown fox: é.\n"
            assert encode(tokenizer, text).input_ids == tuple(tokenizer.encode(text))


def test_a_string_is_parsed() -> None:
    tokenizer = tokenizer_named("byte-level")
    text = f"Read:\n{mark('one')}\n{mark('two')}\nWhy?"
    assert encode(tokenizer, text) == encode(
        tokenizer, ContextPrompt("Read:\n", ["one", "two"], "Why?", "\n")
    )


def test_markers_do_not_count() -> None:
    tokenizer = tokenizer_named("byte-level")
    text = f"Read:\n{mark('one')}\nWhy [[rm:doc]]?"
    assert count_tokens(tokenizer, text) == count_tokens(tokenizer, "Read:\none\nWhy [[rm:doc]]?")


@pytest.mark.parametrize(
    "prompt", ["", ContextPrompt(), ContextPrompt(documents=[""], separator="")]
)
@pytest.mark.parametrize("name", ["byte-level", "byte-level with bos", "prepend"])
def test_an_empty_prompt_is_refused(name: str, prompt: str | ContextPrompt) -> None:
    with pytest.raises(PromptError, match="empty"):
        encode(tokenizer_named(name), prompt)


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("Why?", {"template": "chat"}, "no chat template"),
        ([{"role": "user", "content": "Why?"}], {}, "no chat template"),
    ],
)
def test_a_missing_chat_template_is_reported(
    prompt: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        encode(tokenizer_named("byte-level"), prompt, **options)


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([{"role": "user", "content": "Why?"}], {"template": "raw"}, "not messages"),
        ("Why?", {"template": "raw", "template_options": {"a": 1}}, "no chat template is used"),
        ("Why?", {"template_options": {"documents": ["a"]}}, "must not hold documents"),
        ("Why?", {"allow_control_tokens": True}, "needs template='raw'"),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    prompt: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(PromptError, match=message):
        encode(byte_level_bpe(chat_template=CHATML), prompt, **options)


class TestCounting:
    def test_text_counts_without_start_and_template(self) -> None:
        tokenizer = byte_level_bpe(bos=True, chat_template=CHATML)
        expected = len(tokenizer.encode("Paris is", add_special_tokens=False))
        assert count_tokens(tokenizer, "Paris is") == expected
        assert count_tokens(tokenizer, Document("is", title="Paris")) == count_tokens(
            tokenizer, "Paris\nis"
        )

    def test_prompts_count_as_a_whole(self) -> None:
        tokenizer = byte_level_bpe(bos=True, chat_template=CHATML)
        prompt = ContextPrompt("Read:", ["one"], "Why?")
        assert count_tokens(tokenizer, prompt) == len(encode(tokenizer, prompt))
        messages = [{"role": "user", "content": prompt.marked}]
        assert count_tokens(tokenizer, messages, add_generation_prompt=False) == len(
            encode(tokenizer, messages, add_generation_prompt=False)
        )

    def test_parts_of_a_history_count_too(self) -> None:
        """Memories and trimming count what no template takes by itself."""
        tokenizer = byte_level_bpe(chat_template=GEMMA)
        call = {"type": "function", "function": {"name": "search", "arguments": {}}}
        assert count_tokens(tokenizer, []) == 0
        assert count_tokens(tokenizer, [{"role": "assistant", "content": "So."}]) > 0
        silent = {"role": "assistant", "content": None, "tool_calls": [call]}
        assert count_tokens(tokenizer, [silent]) > 0
