"""What other local models got wrong under LangChain, each once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

from langchain_rag_middle import ChatRagMiddle, RagMiddleLLM
from rag_middle import ChatTemplateError, ContextOverflowError, UnsupportedGenerationError, mark

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
def test_invoking_and_streaming_asynchronously_work(kind: Any, tiny: Any) -> None:
    model = build(kind, tiny)

    async def both() -> tuple[str, str]:
        answer = text(await model.ainvoke("Hello"))
        return answer, "".join([text(piece) async for piece in model.astream("Hello")])

    assert asyncio.run(both()) == (text(model.invoke("Hello")),) * 2


@BOTH
def test_a_batch_is_a_batch(kind: Any, tiny: Any) -> None:
    build(kind, tiny).batch(["a", "b", "c"])
    assert tiny.sent.batch_sizes == [3]


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
def test_options_of_a_call_are_heeded(kind: Any, tiny: Any) -> None:
    model = build(kind, tiny)
    short = text(model.invoke("Hello", max_tokens=3))
    assert text(model.invoke("Hello")).startswith(short)
    drawn = {text(model.invoke("Hello", temperature=2.0, seed=seed)) for seed in range(3)}
    assert len(drawn) == 3


def test_usage_comes_with_every_answer(tiny: Any) -> None:
    model = build(ChatRagMiddle, tiny)
    whole = None
    for chunk in model.stream("Hello"):
        whole = chunk if whole is None else whole + chunk
    answers = [model.invoke("Hello"), whole, *model.batch(["Hello"] * 2)]
    sent = len(tiny.sent.last)
    expected = {"input_tokens": sent, "output_tokens": 12, "total_tokens": sent + 12}
    assert [answer.usage_metadata for answer in answers if answer is not None] == [expected] * 4


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
def test_models_with_other_settings_do_not_share_cached_answers(kind: Any, tiny: Any) -> None:
    cache = InMemoryCache()
    prompt = f"{mark('Lyon on the Rhône.')}{mark('Nantes.')}\n\nWhich?"
    plain = build(kind, tiny, cache=cache).invoke(prompt)
    pine = build(kind, tiny, cache=cache, method="pine").invoke(prompt)
    short = build(kind, tiny, cache=cache, max_tokens=2).invoke(prompt)
    assert len({text(plain), text(pine), text(short)}) == 3


def test_tools_are_not_silently_ignored(tiny: Any) -> None:
    tools = [{"name": "search", "description": "Finds.", "parameters": {}}]
    model = build(ChatRagMiddle, tiny)
    for call in (model.bind_tools(tools).invoke, lambda text: model.invoke(text, tools=tools)):
        with pytest.raises(ChatTemplateError, match="does not show tools"):
            call("Hello")


@BOTH
def test_tokens_are_not_counted_with_another_models_tokenizer(kind: Any, tiny: Any) -> None:
    model = build(kind, tiny)
    expected = len(tiny.tokenizer("Lyon lies on the Rhône.", add_special_tokens=False).input_ids)
    assert model.get_num_tokens("Lyon lies on the Rhône.") == expected > 5


@BOTH
def test_a_prompt_beyond_the_context_window_is_refused(kind: Any, make_model: Any) -> None:
    model = build(kind, make_model(context_window=50))
    for call in (model.invoke, lambda text: list(model.stream(text)), lambda t: model.batch([t])):
        with pytest.raises(ContextOverflowError):
            call("a river flows " * 30)


@BOTH
def test_arguments_that_do_not_exist_are_not_swallowed(kind: Any, tiny_folder: Path) -> None:
    with pytest.raises(UnsupportedGenerationError, match="Did you mean 'temperature'"):
        kind(model=tiny_folder, temprature=0.1)


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


@BOTH
def test_a_failing_model_does_not_make_a_stream_hang(
    kind: Any, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("out of order")

    monkeypatch.setattr(tiny.model, "generate", broken)
    with pytest.raises(RuntimeError, match="out of order"):
        list(build(kind, tiny).stream("Hello"))


def test_a_method_that_stops_working_is_noticed(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # After an upgrade a patch may silently reach nothing.
    from rag_middle import PatchIneffectiveError
    from rag_middle.attention.plan import AttentionPlan
    from rag_middle.methods import MsPoE

    monkeypatch.setattr(MsPoE, "plan", lambda *_: AttentionPlan())
    with pytest.raises(PatchIneffectiveError):
        build(ChatRagMiddle, tiny, method="ms_poe").invoke("Why?", documents=["a", "b"])


def test_whether_a_method_was_used_can_be_told_from_the_answer(tiny: Any) -> None:
    model = build(ChatRagMiddle, tiny, method="pine", on_missing_documents="ignore")
    applied = [
        model.invoke("Why?", documents=documents).response_metadata["rag_middle"]["applied"]
        for documents in (["a", "b"], [])
    ]
    assert applied == [True, False]
