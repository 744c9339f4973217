"""Chat templates of the kinds that models bring."""

import pytest
from transformers import PreTrainedTokenizerBase

from rag_middle.documents import ContextPrompt, Document, mark
from rag_middle.errors import ChatTemplateError, MarkerError, PromptError
from rag_middle.notices import UnreadMarkersWarning
from rag_middle.tokens import TokenizedPrompt, encode
from rag_middle.tokens.conversation import Message
from tests.tokenizers import (
    CHATML,
    GEMMA,
    LLAMA2,
    MISTRAL,
    TEMPLATES,
    byte_level_bpe,
    metaspace_bpe,
    sentencepiece,
)

#: Its template is ChatML.
CHATTING = byte_level_bpe(chat_template=CHATML)
MARKED = f"Read:\n{mark('one')}\n{mark('two')}\nWhy?"


def user(content: str | ContextPrompt) -> dict[str, str | ContextPrompt]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def system(content: str) -> dict[str, str]:
    return {"role": "system", "content": content}


def shown(tokenizer: PreTrainedTokenizerBase, tokenized: TokenizedPrompt) -> str:
    text = tokenizer.decode(tokenized.input_ids, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text


def documents_shown(tokenizer: PreTrainedTokenizerBase, tokenized: TokenizedPrompt) -> list[str]:
    return [tokenizer.decode(ids) for ids in tokenized.documents_ids]


@pytest.mark.parametrize("template", TEMPLATES)
def test_documents_stand_where_the_template_puts_their_message(template: str) -> None:
    tokenizer = byte_level_bpe(chat_template=TEMPLATES[template])
    prompt = ContextPrompt("Read:\n", ["one", Document("two", title="Two")], "Why?")
    tokenized = encode(tokenizer, prompt)
    expected = tokenizer.apply_chat_template(
        [user(prompt.text)], tokenize=False, add_generation_prompt=True
    )
    assert shown(tokenizer, tokenized) == expected
    assert documents_shown(tokenizer, tokenized) == ["one\n\n", "Two\ntwo\n\n"]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("build", [byte_level_bpe, metaspace_bpe, sentencepiece])
def test_a_conversation_without_documents_is_what_the_tokenizer_makes_of_it(
    template: str, build: type[PreTrainedTokenizerBase]
) -> None:
    tokenizer = build(chat_template=TEMPLATES[template])
    messages = [user(" the fox "), assistant("jumps"), user("Why?")]
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    tokenized = encode(tokenizer, messages)
    start = [] if tokenizer.encode("")[:1] != [tokenizer.bos_token_id] else [tokenizer.bos_token_id]
    assert list(tokenized.input_ids) in (expected, start + expected)
    assert tokenized.layout.documents == ()


def test_a_string_or_prompt_is_one_user_message() -> None:
    assert encode(CHATTING, MARKED) == encode(CHATTING, [user(MARKED)])
    assert encode(CHATTING, "Why?") == encode(CHATTING, [user("Why?")])


def test_the_answer_is_opened_only_if_asked() -> None:
    opened = shown(CHATTING, encode(CHATTING, MARKED))
    closed = shown(CHATTING, encode(CHATTING, MARKED, add_generation_prompt=False))
    assert opened == closed + "<|im_start|>assistant\n"


def test_template_options_reach_the_template() -> None:
    tokenizer = byte_level_bpe(chat_template=CHATML + "{{ '<think>' if thinking }}")
    options = {"template_options": {"thinking": True}}
    assert shown(tokenizer, encode(tokenizer, "Why?", **options)).endswith("<think>")
    assert not shown(tokenizer, encode(tokenizer, "Why?")).endswith("<think>")


def test_the_models_last_message_is_continued_or_closed_if_asked() -> None:
    for said in ("Because", "<b>Because</b> "):
        messages = [user(MARKED), assistant(said)]
        for options, ends in (
            ({"continue_final_message": True}, f"assistant\n{said}"),
            ({"add_generation_prompt": False}, f"assistant\n{said}<|im_end|>\n"),
        ):
            prompt = encode(CHATTING, messages, template_options=options)
            assert shown(CHATTING, prompt).endswith(ends)
            assert len(prompt.layout.documents) == 2
    for none in ("Why?", [user("Why?")], [user("Why?"), assistant("")]):
        with pytest.raises(PromptError, match="add it to the messages"):
            encode(CHATTING, none, template_options={"continue_final_message": True})


class TestWhichDocuments:
    def test_those_of_the_last_marked_message_count(self) -> None:
        messages = [user(f"{mark('old')}\nHow?"), assistant("So."), user(MARKED), assistant("Ok")]
        tokenized = encode(CHATTING, messages)
        assert documents_shown(CHATTING, tokenized) == ["one\n", "two\n"]
        prefix = CHATTING.decode(tokenized.prefix_ids)
        assert prefix.startswith("<|im_start|>user\nold\nHow?<|im_end|>")
        assert CHATTING.decode(tokenized.suffix_ids).startswith("Why?<|im_end|>")

    @pytest.mark.parametrize("nothing", ["", " \n"])
    def test_an_answer_of_nothing_ends_a_turn_and_a_call_without_a_word_ends_none(
        self, nothing: str
    ) -> None:
        calls = {**assistant(nothing), "tool_calls": [{"function": {"name": "search"}}]}
        first, second = user(f"{mark('one')}Why?"), user(f"{mark('two')}And?")
        tokenized = encode(CHATTING, [first, assistant(nothing), second])
        assert documents_shown(CHATTING, tokenized) == ["two"]
        assert "user\noneWhy?<|im_end|>" in CHATTING.decode(tokenized.prefix_ids)
        tokenized = encode(CHATTING, [first, calls, second])
        assert len(documents_shown(CHATTING, tokenized)) == 2

    @pytest.mark.parametrize("words", ["Let me look.", "<think>Where?</think>"])
    def test_a_call_with_words_ends_a_turn_where_the_user_speaks_next(self, words: str) -> None:
        calls = {**assistant(words), "tool_calls": [{"function": {"name": "search"}}]}
        first, second = user(f"{mark('one')}Why?"), user(f"{mark('two')}And?")
        told = {"role": "tool", "content": mark("two")}
        for following, documents in ((told, 2), (second, 1)):
            tokenized = encode(CHATTING, [first, calls, following])
            assert len(documents_shown(CHATTING, tokenized)) == documents

    def test_they_may_stand_in_the_system_message(self) -> None:
        tokenizer = byte_level_bpe(chat_template=LLAMA2)
        tokenized = encode(tokenizer, [system(MARKED), user("And?")])
        assert documents_shown(tokenizer, tokenized) == ["one\n", "two\n"]
        assert tokenizer.decode(tokenized.suffix_ids) == "Why?\n<</SYS>>\n\nAnd? [/INST]"

    @pytest.mark.parametrize("template", [GEMMA, MISTRAL])
    def test_they_move_with_a_folded_system_message(self, template: str) -> None:
        tokenizer = byte_level_bpe(chat_template=template)
        tokenized = encode(tokenizer, [system(MARKED), user("And?")])
        assert documents_shown(tokenizer, tokenized) == ["one\n", "two\n"]
        assert tokenizer.decode(tokenized.suffix_ids).startswith("Why?\n\nAnd?")

    def test_documents_of_a_message_must_stand_together(self) -> None:
        apart = user(f"{mark('one')} and {mark('two')}")
        with pytest.raises(MarkerError):
            encode(CHATTING, [user("Hello."), apart])
        # What was said in an earlier turn must not make later ones fail.
        tokenized = encode(CHATTING, [apart, assistant("So."), user("Why?")])
        assert documents_shown(CHATTING, tokenized) == ["two"]

    @pytest.mark.parametrize("role", ["assistant", "model"])
    def test_a_string_of_the_model_holds_none(self, role: str) -> None:
        said = f"[[~rm:doc]] [[rm:doc]]forged[[/rm:doc]] {mark('seen')}"
        messages = [user(MARKED), {"role": role, "content": said}, user("Why?")]
        tokenized = encode(CHATTING, messages)
        assert documents_shown(CHATTING, tokenized) == ["one\n", "two\n"]
        text = f"{role}\n[[~rm:doc]] [[rm:doc]]forged[[/rm:doc]] seen<|im_end|>"
        assert text in shown(CHATTING, tokenized)

    @pytest.mark.parametrize("history", [[], [user(MARKED), assistant("So.")]])
    @pytest.mark.parametrize("later", [[], [assistant("So."), user("And?")]])
    def test_a_document_that_a_user_sends_again_is_one_more(
        self, history: list[Message], later: list[Message]
    ) -> None:
        rules, again = system(f"Rules. {MARKED}"), user(f"See {mark('old')} again.")
        tokenized = encode(CHATTING, [rules, *history, again, *later])
        together = [*["one\n\n", "two\n\n"], "old\n\n"]
        assert documents_shown(CHATTING, tokenized) == together
        assert CHATTING.decode(tokenized.prefix_ids).endswith("system\nRules. Read:\n")
        assert "user\nSee  again.<|im_end|>" in CHATTING.decode(tokenized.suffix_ids)
        # What a tool returned follows, told by the user.
        tokenized = encode(CHATTING, [system("Rules."), *history, again, user(MARKED), *later])
        assert documents_shown(CHATTING, tokenized) == [together[2], *together[:2]]

    def test_history_that_repeats_the_documents_of_the_system_message_adds_none(self) -> None:
        """LlamaIndex's chat engines fill in history as they do their template."""
        rules = system(f"Rules. {MARKED}")
        repeated = [user(f"{MARKED} and {MARKED}"), assistant("So.")]
        tokenized = encode(CHATTING, [rules, *repeated, user("And?")])
        assert documents_shown(CHATTING, tokenized) == ["one\n", "two\n"]
        assert "user\nRead:\none\ntwo\n" in CHATTING.decode(tokenized.suffix_ids)
        # In the turn that is asked now, it is a document that a user sends again.
        tokenized = encode(CHATTING, [rules, *repeated, user(mark("one"))])
        again = ["one\n\n", "two\n\n", "one\n\n"]
        assert documents_shown(CHATTING, tokenized) == again
        # One that the system message does not hold is no repetition.
        other = [user(f"{mark('one')}{mark('three')}"), assistant("So."), *repeated]
        tokenized = encode(CHATTING, [rules, *other, user("And?")])
        assert len(documents_shown(CHATTING, tokenized)) == 4

    def test_scores_outlive_a_document_without_one(self) -> None:
        scored = [Document(text, metadata={"score": n}) for n, text in enumerate("ab", start=2)]
        messages = [user(mark("old")), user(ContextPrompt("", scored, "Why?"))]
        assert encode(CHATTING, messages).scores == (2, 2, 3)

    def test_markers_that_mark_nothing_are_text_in_every_turn(self) -> None:
        stray = user("[[~rm:doc]] [[/rm:doc]]")
        with pytest.warns(UnreadMarkersWarning):
            text = shown(CHATTING, encode(CHATTING, [stray, user(mark("[[rm:doc]]"))]))
        assert "user\n[[~rm:doc]] [[/rm:doc]]<|im_end|>" in text
        assert "user\n[[rm:doc]]<|im_end|>" in text


class TestSystem:
    @pytest.mark.parametrize("template", [CHATML, LLAMA2])
    def test_is_a_message_where_the_template_takes_it(self, template: str) -> None:
        tokenizer = byte_level_bpe(chat_template=template)
        assert encode(tokenizer, MARKED, system="Be kind.") == encode(
            tokenizer, [system("Be kind."), user(MARKED)]
        )
        rendered = tokenizer.apply_chat_template(
            [system("Be kind."), user("Why?")], tokenize=False, add_generation_prompt=True
        )
        assert shown(tokenizer, encode(tokenizer, "Why?", system="Be kind.")) == rendered

    @pytest.mark.parametrize("template", [GEMMA, MISTRAL])
    def test_begins_the_user_message_where_the_template_refuses_or_drops_it(
        self, template: str
    ) -> None:
        tokenizer = byte_level_bpe(chat_template=template)
        assert encode(tokenizer, MARKED, system="Be kind.") == encode(
            tokenizer, f"Be kind.\n\n{MARKED}"
        )

    def test_given_twice_is_refused(self) -> None:
        with pytest.raises(PromptError, match="system was given too"):
            encode(CHATTING, [system("a"), user("b")], system="c")


def test_messages_of_one_role_are_joined_where_roles_must_alternate() -> None:
    tokenizer = byte_level_bpe(chat_template=GEMMA)
    assert encode(tokenizer, [user("Hello."), user(MARKED)]) == encode(
        tokenizer, [user(f"Hello.\n\n{MARKED}")]
    )
    silent = {"role": "user", "content": None}
    assert encode(tokenizer, [silent, user("Hello.")]) == encode(tokenizer, [user("Hello.")])


def test_messages_that_the_template_refuses_are_reported_in_its_words() -> None:
    tokenizer = byte_level_bpe(chat_template=GEMMA)
    with pytest.raises(ChatTemplateError, match=r"roles must alternate.*\['assistant', 'user'\]"):
        encode(tokenizer, [assistant("a"), user("b")])


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ messages[-1]['role'] }}", "drops"),
        ("{% for m in messages %}{{ m['content'] * 2 }}{% endfor %}", "repeats"),
    ],
)
def test_a_template_that_drops_or_repeats_the_documents_is_refused(
    template: str, message: str
) -> None:
    tokenizer = byte_level_bpe(chat_template=template)
    with pytest.raises(ChatTemplateError, match=message):
        encode(tokenizer, [user(MARKED), user("And?")])


def test_a_content_may_be_a_prompt_whose_documents_keep_their_ids() -> None:
    documents = [Document("Lyon lies on the river.", id="lyon"), Document("Paris.", id="paris")]
    prompt = ContextPrompt("Read.\n", documents, "Question?")
    encoded = encode(CHATTING, [system("a"), user(prompt), assistant("b"), user("And?")])
    assert encoded.document_ids == ("lyon", "paris")
    as_text = [system("a"), user(prompt.marked), assistant("b"), user("And?")]
    assert encoded.input_ids == encode(CHATTING, as_text).input_ids


@pytest.mark.parametrize(
    "message", [{"content": "a"}, {"role": "user", "content": [{"type": "text", "text": "a"}]}]
)
def test_messages_of_another_shape_are_refused(message: dict[str, object]) -> None:
    with pytest.raises(PromptError, match="Message 1 needs a role and a content"):
        encode(CHATTING, [user("a"), message])


@pytest.mark.parametrize("role", ["user<|im_end|>", "<|im_end|>"])
def test_a_role_that_holds_a_control_token_is_refused(role: str) -> None:
    with pytest.raises(PromptError, match="control token"):
        encode(CHATTING, [{"role": role, "content": "a"}])


def test_documents_may_use_every_private_use_character() -> None:
    text = "".join(map(chr, range(0xE000, 0xF900)))
    asked = [user(mark(text)), assistant("So."), user(f"{mark(text)} Why?")]
    (document,) = documents_shown(CHATTING, encode(CHATTING, asked))
    assert document.strip() == text
    every = "".join(map(chr, [*range(0xE000, 0xF900), *range(0xF0000, 0x110000)]))
    assert encode(CHATTING, user(mark(every))["content"]).layout.documents
    with pytest.raises(PromptError, match="private-use"):
        encode(CHATTING, [user(every)])
