"""Threads of a model end with the program, and generators in threads with whoever reads them."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from rag_middle.threads import pieces_in_thread

AT_EXIT = """
import atexit, os, sys, threading, time

def report():  # registered first, so called last
    names = sorted(each.name for each in threading.enumerate() if each.name != "MainThread")
    print(*names, "end", flush=True)

atexit.register(report)
from rag_middle import threads

threads._END_SECONDS = 1.0

def look(stopped):
    while not stopped.is_set():
        time.sleep(0.01)
    time.sleep(0.05)  # the token under way

def wait(_):
    time.sleep(60)

def start(work):
    stopped = threading.Event()
    run = lambda: work(stopped)
    threads.ModelThread(run, name=work.__name__, stop=stopped.set).start()
"""


@pytest.mark.parametrize(
    ("work", "left"),
    [
        ("start(look); start(look)", "end"),
        ("start(wait)", "wait end"),  # nothing can be done, and the program does not wait for it
        ("start(look); raise KeyboardInterrupt", "end"),
    ],
)
def test_a_program_ends_without_threads_of_the_model(work: str, left: str) -> None:
    raises = "" if "raise" in work else "; sys.exit(3)"
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"{AT_EXIT}\n{work}{raises}"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[1],
        check=False,
    )
    assert ended.stdout.split() == left.split()
    assert ended.returncode == (3 if "raise" not in work else -2), ended.stderr
    assert time.monotonic() - began < 30


class Held:
    """A generator's first piece comes at once, and the second one only when it is cancelled."""

    def __init__(self) -> None:
        self.cancel, self.closed = threading.Event(), threading.Event()

    def pieces(self) -> Generator[int, None, None]:
        try:
            yield 1
            assert self.cancel.wait(20)
            time.sleep(0.1)  # the loop shuts its executor down meanwhile
            yield 2
        finally:
            self.closed.set()


def test_a_generator_is_closed_where_its_task_is_cancelled_as_the_loop_ends() -> None:
    held, complaints = Held(), []

    async def read() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        async for _ in pieces_in_thread(held.pieces(), held.cancel):
            pass

    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(read(), 0.1))
    assert held.closed.wait(5)
    assert complaints == []


def test_a_generator_that_is_left_early_is_closed() -> None:
    held = Held()

    async def read() -> None:
        pieces = pieces_in_thread(held.pieces(), held.cancel)
        assert await anext(pieces) == 1
        await pieces.aclose()

    asyncio.run(read())
    assert held.closed.wait(5)
    assert held.cancel.is_set()


def test_what_a_generator_raises_reaches_its_reader() -> None:
    def failing() -> Generator[int, None, None]:
        yield 1
        raise MemoryError("no memory left")

    async def read() -> None:
        async for _ in pieces_in_thread(failing(), threading.Event()):
            pass

    with pytest.raises(MemoryError, match="no memory left"):
        asyncio.run(read())
