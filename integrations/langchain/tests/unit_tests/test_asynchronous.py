"""Asynchronous calls leave the event loop alone, and end when they are cancelled."""

import asyncio
import threading
from typing import Any

import pytest

from langchain_rag_middle import ChatRagMiddle, RagMiddleLLM

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]


CLASSES = [ChatRagMiddle, RagMiddleLLM]


def text(answer: Any) -> str:
    return str(getattr(answer, "content", answer))


@pytest.mark.parametrize("kind", CLASSES)
async def test_the_event_loop_goes_on_while_the_model_works(tiny: Any, kind: Any) -> None:
    model = kind(model=tiny, max_tokens=30)
    release = threading.Event()
    run = type(tiny).batch

    def waiting(self: Any, prompts: Any, **options: Any) -> Any:
        assert release.wait(30)  # set by the event loop: blocked, it could not
        return run(self, prompts, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(tiny), "batch", waiting)
        call = asyncio.ensure_future(model.ainvoke("Hello"))
        await asyncio.sleep(0.05)
        assert not call.done()
        release.set()
        answer = await call
    assert text(answer) == text(model.invoke("Hello"))


@pytest.mark.parametrize("kind", CLASSES)
async def test_streams_give_the_same_pieces(tiny: Any, kind: Any) -> None:
    model = kind(model=tiny, max_tokens=30)
    pieces = [text(piece) async for piece in model.astream("Hello")]
    assert pieces == [text(piece) for piece in model.stream("Hello")]
    assert len(pieces) > 5


@pytest.fixture
def cancelled(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Finish reasons of everything generated."""
    reasons: list[str] = []
    from rag_middle.generation import engine

    generate = engine.generate

    def watched(*args: Any, **given: Any) -> Any:
        generations = generate(*args, **given)
        reasons.extend(each.finish_reason for each in generations)
        return generations

    monkeypatch.setattr(engine, "generate", watched)
    return reasons


async def until(condition: Any) -> None:
    for _ in range(600):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("It did not happen within 30 seconds.")


@pytest.mark.parametrize(
    ("kind", "name", "prompt", "count"),
    [
        *((kind, "ainvoke", "Hello", 1) for kind in CLASSES),
        (ChatRagMiddle, "abatch", ["a", "b"], 2),
    ],
)
async def test_cancelling_a_call_ends_the_generation(
    tiny: Any, cancelled: list[str], kind: Any, name: str, prompt: Any, count: int
) -> None:
    call = asyncio.ensure_future(getattr(kind(model=tiny, max_tokens=1500), name)(prompt))
    await asyncio.sleep(0.3)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(lambda: cancelled == ["cancelled"] * count)


@pytest.mark.parametrize("kind", CLASSES)
async def test_leaving_a_stream_ends_the_generation(
    tiny: Any, cancelled: list[str], kind: Any
) -> None:
    model = kind(model=tiny, max_tokens=1500)
    stream = model.astream("Hello")
    await anext(stream)
    await stream.aclose()
    await until(lambda: cancelled == ["cancelled"])
