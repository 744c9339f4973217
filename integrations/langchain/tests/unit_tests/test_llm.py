"""RagMiddleLLM: text in, text out."""

from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document

from langchain_rag_middle import RagMiddleLLM, format_docs

pytestmark = pytest.mark.anyio


TEXTS = ["Lyon lies on the Rhône.", "Nantes lies on the Loire."]
PROMPT = f"{format_docs(map(Document, TEXTS))}\n\nWhich?"


def llm(model: Any, **settings: Any) -> RagMiddleLLM:
    return RagMiddleLLM(model=model, **{"max_tokens": 6, **settings})


def test_text_becomes_a_message_of_the_user(tiny: Any, sent: Any) -> None:
    answer = llm(tiny, method="ms_poe").invoke(PROMPT)
    assert sent[-1].documents == TEXTS
    assert sent[-1].text.startswith("<s><|im_start|>user\nLyon")
    assert answer == tiny.generate(PROMPT, method="ms_poe", max_new_tokens=6).text


def test_or_is_sent_as_it_is(tiny: Any, sent: Any) -> None:
    llm(tiny, template="raw").invoke(PROMPT)
    assert sent[-1].text == "<s>" + "\n\n".join([*TEXTS, "Which?"])


def test_a_system_message_can_be_put_before_it(tiny: Any, sent: Any) -> None:
    llm(tiny, system="Be brief.").invoke("Hello")
    assert "system\nBe brief.<|im_end|>" in sent[-1].text


def test_prompts_go_through_the_model_together(tiny: Any, sent: Any) -> None:
    model = llm(tiny)
    prompts = ["a", "b b", "c c c"]
    alone = [model.invoke(each) for each in prompts]
    assert model.batch(prompts) == alone
    assert [g[0].text for g in model.generate(prompts).generations] == alone
    assert [prompt.batch_size for prompt in sent[3:]] == [3] * 6


def test_usage_and_how_it_came_about_are_told(tiny: Any, sent: Any) -> None:
    result = llm(tiny, method="pine").generate([PROMPT, PROMPT])
    lengths = [len(prompt.ids) for prompt in sent]
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

    class Pieces(BaseCallbackHandler):
        def on_llm_new_token(self, token: str, **_: Any) -> Any:
            seen.append(token)

    model = llm(tiny)
    pieces = list(model.stream("Hello", config={"callbacks": [Pieces()]}))
    assert "".join(pieces) == model.invoke("Hello")
    assert seen == pieces
    beams = llm(tiny, num_beams=2)
    assert [*beams.stream("Hello")][:-1] == [beams.invoke("Hello")]


def test_the_cache_tells_options_of_a_call_apart(tiny: Any, sent: Any) -> None:
    model = llm(tiny, cache=InMemoryCache())
    plain = model.invoke(PROMPT)
    assert model.invoke(PROMPT, temperature=1.0, seed=1) != plain
    assert model.invoke(PROMPT, max_tokens=2) != plain
    assert model.invoke(PROMPT, stop=["never written"]) == plain
    assert len(sent) == 4
    assert model.invoke(PROMPT) == plain
    assert model.bind(max_tokens=2).invoke(PROMPT) != plain
    assert len(sent) == 4  # both were known
