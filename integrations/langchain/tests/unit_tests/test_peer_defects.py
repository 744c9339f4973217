"""What other local models got wrong under LangChain, each once."""

from __future__ import annotations

from typing import Any

import pytest

from langchain_rag_middle import ChatRagMiddle, RagMiddleLLM

BOTH = pytest.mark.parametrize("kind", [ChatRagMiddle, RagMiddleLLM])


def text(answer: Any) -> str:
    return str(getattr(answer, "content", answer))


def build(kind: Any, model: Any, **settings: Any) -> Any:
    return kind(model=model, **{"max_tokens": 12, **settings})


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
