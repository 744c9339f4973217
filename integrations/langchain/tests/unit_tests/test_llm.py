"""RagMiddleLLM: text in, text out."""

from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.documents import Document
from langchain_core.tracers import BaseTracer

from langchain_rag_middle import RagMiddleLLM, format_docs

pytestmark = pytest.mark.anyio


TEXTS = ["Lyon lies on the Rhône.", "Nantes lies on the Loire."]
PROMPT = f"{format_docs(map(Document, TEXTS))}\n\nWhich?"


def llm(model: Any, **settings: Any) -> RagMiddleLLM:
    return RagMiddleLLM(model=model, **{"max_tokens": 6, **settings})


def test_text_becomes_a_message_of_the_user(tiny: Any) -> None:
    answer = llm(tiny, method="pine").invoke(PROMPT)
    assert tiny.sent.documents == TEXTS
    assert tiny.sent.text.startswith("<s><|im_start|>user\nLyon")
    assert answer == tiny.generate(PROMPT, method="pine", max_new_tokens=6).text


def test_or_is_sent_as_it_is(tiny: Any) -> None:
    llm(tiny, template="raw").invoke(PROMPT)
    assert tiny.sent.text == "<s>" + "\n\n".join([*TEXTS, "Which?"])


def test_a_system_message_can_be_put_before_it(tiny: Any) -> None:
    llm(tiny, system="Be brief.").invoke("Hello")
    assert "system\nBe brief.<|im_end|>" in tiny.sent.text


def test_prompts_go_through_the_model_together(tiny: Any) -> None:
    model = llm(tiny)
    prompts = ["a", "b b", "c c c"]
    alone = [model.invoke(each) for each in prompts]
    tiny.sent.batch_sizes.clear()
    assert model.batch(prompts) == alone
    assert [g[0].text for g in model.generate(prompts).generations] == alone
    assert tiny.sent.batch_sizes == [3, 3]


def test_usage_and_how_it_came_about_are_told(tiny: Any) -> None:
    result = llm(tiny, method="pine").generate([PROMPT, PROMPT])
    lengths = [len(prompt) for prompt in tiny.sent.prompts]
    assert result.llm_output == {
        "token_usage": {
            "prompt_tokens": sum(lengths),
            "completion_tokens": 12,
            "total_tokens": sum(lengths) + 12,
        },
        "model_name": "LlamaForCausalLM",
    }
    info = result.generations[0][0].generation_info
    assert info is not None
    assert info["finish_reason"] == "length"
    assert info["usage"]["input_tokens"] == lengths[0]
    assert (info["rag_middle"]["method"], info["rag_middle"]["documents"]) == ("pine", 2)


def test_pieces_add_up_to_the_answer(tiny: Any) -> None:
    seen: list[str] = []

    class Pieces(BaseTracer):
        def _persist_run(self, run: Any) -> None: ...

        def on_llm_new_token(self, token: str, **_: Any) -> Any:  # type: ignore[override]
            seen.append(token)

    model = llm(tiny)
    pieces = list(model.stream("Hello", config={"callbacks": [Pieces()]}))
    assert "".join(pieces) == model.invoke("Hello")
    assert seen == pieces
    assert [*llm(tiny, num_beams=2).stream("Hello")][:-1] == [
        llm(tiny, num_beams=2).invoke("Hello")
    ]


def test_the_cache_tells_options_of_a_call_apart(tiny: Any) -> None:
    model = llm(tiny, cache=InMemoryCache())
    plain = model.invoke(PROMPT)
    assert model.invoke(PROMPT, method="pine") != plain
    assert model.invoke(PROMPT, max_tokens=2) != plain
    assert model.invoke(PROMPT, stop=["never written"]) == plain
    assert tiny.sent.batch_sizes == [1] * 4
    assert model.invoke(PROMPT) == plain
    assert model.bind(method="pine").invoke(PROMPT) != plain
    assert tiny.sent.batch_sizes == [1] * 4  # both were known
