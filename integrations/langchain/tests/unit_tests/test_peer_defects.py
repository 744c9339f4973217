"""What other local models got wrong under LangChain, each once."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

from langchain_rag_middle import ChatRagMiddle, RagMiddleLLM

BOTH = pytest.mark.parametrize("kind", [ChatRagMiddle, RagMiddleLLM])


def text(answer: Any) -> str:
    return str(getattr(answer, "content", answer))


def build(kind: Any, model: Any, **settings: Any) -> Any:
    return kind(model=model, **{"max_tokens": 12, **settings})


@BOTH
def test_the_prompt_is_not_echoed(kind: Any, tiny: Any) -> None:
    question = "Which river flows through the town?"
    answer = text(build(kind, tiny).invoke(question))
    assert answer == tiny.generate(question, max_new_tokens=12).text
    assert question not in answer


@BOTH
@pytest.mark.parametrize("at", ["call", "construction", "bind"])
@pytest.mark.one_in(3)
def test_stop_strings_of_several_tokens_end_the_answer(kind: Any, tiny: Any, at: str) -> None:
    whole = text(build(kind, tiny).invoke("Hello"))
    stop = whole[4:7]
    assert len(tiny.token_ids(stop)) > 1
    if at == "construction":
        model, given = build(kind, tiny, stop=[stop]), {}
    else:
        model, given = build(kind, tiny), {"stop": [stop]}
    if at == "bind":
        model, given = model.bind(**given), {}
    expected = whole[: whole.index(stop)]
    assert text(model.invoke("Hello", **given)) == expected
    assert "".join(map(text, model.stream("Hello", **given))) == expected
    assert [text(answer) for answer in model.batch(["Hello"] * 2, **given)] == [expected] * 2


@BOTH
def test_a_prompt_begins_with_one_bos(kind: Any, tiny: Any) -> None:
    # The template writes one, and so does the tokenizer.
    assert len(tiny.tokenizer("a").input_ids) == 2
    build(kind, tiny).invoke("Hello")
    assert tiny.sent.last.input_ids.count(tiny.tokenizer.bos_token_id) == 1


def test_the_last_message_may_be_anyones(tiny: Any) -> None:
    model = build(ChatRagMiddle, tiny)
    for last in (AIMessage("Hi"), SystemMessage("Be brief.")):
        assert model.invoke([HumanMessage("Hello"), last]).content


@BOTH
def test_a_template_that_forbids_system_messages_still_gets_them(
    kind: Any, make_model: Any, templates: Any
) -> None:
    model = make_model(templates["gemma"])
    if kind is ChatRagMiddle:
        build(kind, model).invoke([SystemMessage("Be brief."), HumanMessage("Hello")])
    else:
        build(kind, model, system="Be brief.").invoke("Hello")
    assert "Be brief." in model.sent.text
