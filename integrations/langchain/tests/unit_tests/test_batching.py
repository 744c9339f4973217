"""Several inputs share forward passes, and are otherwise calls of their own."""

import asyncio
import threading
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.tracers import BaseTracer

from langchain_rag_middle import ChatRagMiddle
from rag_middle import ContextOverflowError, MarkerError, mark

pytestmark = pytest.mark.thorough

INPUTS = ["a", "b b", "c c c", "d d d d", "e"]
APART = f"{mark('a')} and {mark('b')}"  # refused: documents stand together


def chat(model: Any, **settings: Any) -> ChatRagMiddle:
    return ChatRagMiddle(model=model, **{"max_tokens": 4, **settings})


@pytest.fixture(params=["batch", "abatch"])
def batch(request: pytest.FixtureRequest) -> Any:
    """``batch(model, inputs, ...)``, of either kind."""
    if request.param == "batch":
        return lambda model, *args, **more: model.batch(*args, **more)
    return lambda model, *args, **more: asyncio.run(model.abatch(*args, **more))


def test_prompts_go_through_the_model_together(tiny: Any, batch: Any, sent: Any) -> None:
    answers = batch(chat(tiny), INPUTS)
    assert [prompt.batch_size for prompt in sent] == [5] * 5
    alone = [chat(tiny).invoke(each) for each in INPUTS]
    assert [answer.content for answer in answers] == [answer.content for answer in alone]
    counts = [answer.usage_metadata["input_tokens"] for answer in answers]
    assert counts == [answer.usage_metadata["input_tokens"] for answer in alone]


def test_a_batch_is_computed_in_the_thread_that_asked(tiny: Any) -> None:
    # Another thread would bring another set of OpenMP helpers, and slow both down.
    threads = set()
    with tiny.model.register_forward_pre_hook(lambda *_: threads.add(threading.current_thread())):
        chat(tiny).batch(INPUTS)
    assert threads == {threading.current_thread()}


@pytest.mark.timeout(20)
def test_an_interrupt_leaves_no_call_waiting(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(tiny), "batch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            chat(tiny).batch(INPUTS)
    assert threading.active_count() == before
    assert len(chat(tiny).batch(INPUTS)) == 5


def test_the_largest_batch_is_limited(
    tiny: Any, batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = []
    run = type(tiny).batch

    def watched(self: Any, prompts: Any, **options: Any) -> Any:
        limits.append((len(prompts), options["max_batch_size"]))
        return run(self, prompts, **options)

    monkeypatch.setattr(type(tiny), "batch", watched)
    batch(chat(tiny, max_batch_size=2), INPUTS)
    assert limits == [(5, 2)]
    batch(chat(tiny), INPUTS, {"max_concurrency": 3})
    assert limits[1:] == [(3, 3), (2, 3)]


def test_every_input_has_its_own_run_and_config(tiny: Any, batch: Any) -> None:
    runs: list[Any] = []

    class Runs(BaseTracer):
        def _persist_run(self, run: Any) -> None:
            runs.append(run)

    configs = [{"callbacks": [Runs()], "tags": [each], "run_name": each} for each in INPUTS]
    answers = batch(chat(tiny), INPUTS, configs)
    found = {run.name: run for run in runs}
    assert sorted(found) == sorted(INPUTS)
    assert all(each in found[each].tags for each in INPUTS)
    told = found["b b"].outputs["generations"][0][0]["text"]
    assert told == answers[1].content
    assert {answer.id for answer in answers} == {f"lc_run--{run.id}-0" for run in runs}


def test_an_input_that_is_refused_costs_the_others_nothing(make_model: Any, batch: Any) -> None:
    model = make_model(context_window=60)
    inputs = ["a", "long " * 60, "b", APART, "c"]
    answers = batch(chat(model), inputs, return_exceptions=True)
    assert isinstance(answers[1], ContextOverflowError)
    assert isinstance(answers[3], MarkerError)
    alone = [chat(model).invoke(inputs[index]).content for index in (0, 2, 4)]
    assert [answers[index].content for index in (0, 2, 4)] == alone
    with pytest.raises(ContextOverflowError):
        batch(chat(model), inputs[:3])


def test_inputs_in_the_cache_are_not_generated_again(tiny: Any, batch: Any, sent: Any) -> None:
    model = chat(tiny, cache=InMemoryCache())
    known = [model.invoke(each).content for each in INPUTS[:2]]
    answers = batch(model, INPUTS)
    assert [answer.content for answer in answers[:2]] == known
    batch(model, INPUTS)
    assert [prompt.batch_size for prompt in sent] == [1, 1, 3, 3, 3]


def test_streams_inside_a_batch_do_not_keep_it_waiting(tiny: Any, batch: Any) -> None:
    answers = batch(chat(tiny, streaming=True), INPUTS)
    assert [a.content for a in answers] == [chat(tiny).invoke(each).content for each in INPUTS]
