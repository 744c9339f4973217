"""Prompts that are read twice: against prompts written twice by hand."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from rag_middle import ContextPrompt, Document
from rag_middle.errors import ContextOverflowError, PromptError
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import PromptRepetition
from tests.generation.conftest import MakeModel
from tests.tokenizers import CHATML, byte_level_bpe

PROMPT = ContextPrompt(
    "Read.\n",
    [
        Document("Paris.", title="France", id="a", metadata={"score": 0.2}),
        Document("Lyon.", id="b"),
    ],
    "Which?",
    separator="\n",
)
TWICE = PromptRepetition()
DOCUMENTS = PromptRepetition(what="documents")


@pytest.fixture(scope="module")
def chat(llama: PreTrainedModel) -> RagMiddleModel:
    return RagMiddleModel(llama, byte_level_bpe(chat_template=CHATML))


@pytest.mark.parametrize(
    ("method", "written"),
    [
        (TWICE, "Read.\nFrance\nParis.\nLyon.\nWhich?\n\nRead.\nFrance\nParis.\nLyon.\nWhich?"),
        (
            PromptRepetition(times=3, between="|"),
            "|".join(["Read.\nFrance\nParis.\nLyon.\nWhich?"] * 3),
        ),
        (DOCUMENTS, "Read.\nFrance\nParis.\nLyon.\nFrance\nParis.\nLyon.\nWhich?"),
    ],
)
def test_the_text_is_what_one_would_write_by_hand(method: PromptRepetition, written: str) -> None:
    changed = method.rewrite(PROMPT)
    assert changed.text == written
    assert [document.id for document in changed.documents] == ["a", "b"] * method.times
    assert PromptRepetition(times=1).rewrite(PROMPT) is PROMPT


@pytest.mark.parametrize("method", [TWICE, DOCUMENTS])
def test_the_model_reads_the_copies_and_nothing_else_changes(
    model: RagMiddleModel, method: PromptRepetition
) -> None:
    by_hand = model.logits(method.rewrite(PROMPT))
    assert torch.equal(model.logits(PROMPT, method=method), by_hand)
    assert not torch.equal(by_hand, model.logits(PROMPT))
    generation = model.generate(PROMPT, method=method, max_new_tokens=2)
    assert generation.document_ids == ("a", "b", "a", "b")
    assert generation.documents == 4


def test_the_chat_template_stands_around_both_copies(chat: RagMiddleModel) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Hi."},
        {"role": "user", "content": PROMPT},
    ]
    repeated = [messages[0], {"role": "user", "content": TWICE.rewrite(PROMPT)}]
    assert chat.encode(messages, method=TWICE) == chat.encode(repeated)
    bare = [messages[0], {"role": "user", "content": "Which?"}]
    again = [messages[0], {"role": "user", "content": "Which?\n\nWhich?"}]
    assert chat.encode(bare, method=TWICE) == chat.encode(again)
    assert chat.encode(bare, method=DOCUMENTS) == chat.encode(bare)
    answered = [*bare, {"role": "assistant", "content": "b"}]  # no question to repeat
    assert chat.encode(answered, method=TWICE) == chat.encode(answered)


def test_tokens_take_their_documents_twice_and_no_more(model: RagMiddleModel) -> None:
    tokens = model.encode(PROMPT)
    assert DOCUMENTS.rewrite(tokens) == model.encode(PROMPT, method=DOCUMENTS)
    assert DOCUMENTS.rewrite(replace(tokens, shows_tools=True)).shows_tools
    with pytest.raises(PromptError, match="in tokens already"):
        model.generate(tokens, method=TWICE)


def test_copies_count_where_a_prompt_has_to_fit(make_model: MakeModel) -> None:
    whole = make_model(method=DOCUMENTS)
    length = len(whole.encode(PROMPT))
    small = make_model(method=DOCUMENTS, context_window=length)
    with pytest.raises(ContextOverflowError):
        small.generate(PROMPT, max_new_tokens=1)
    generation = small.generate(PROMPT, max_new_tokens=1, on_overflow="drop_documents")
    assert [dropped.index for dropped in generation.dropped_documents] == [3]  # a second copy
