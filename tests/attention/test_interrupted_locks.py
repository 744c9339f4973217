"""Ctrl-C at any instruction at which Python notices it leaves no model taken."""

from __future__ import annotations

import _thread
import contextlib
import dis
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import count
from types import CodeType, FrameType
from typing import Any

import pytest
from torch import nn

from rag_middle.attention import model_lock, turn, turns
from tests.attacks.hostile import report

FILES = {module.__file__ for module in (turns, contextlib)}
#: Python looks for signals as functions begin, after calls and as loops go round; not where a
#: ``with`` statement enters and leaves what C code guards.
LOOKS = ("RESUME", "CALL", "JUMP_BACKWARD", "SEND")


class Interrupting:
    """A trace function: Ctrl-C at the `due`-th place of locks and of ``with`` statements."""

    def __init__(self, due: int) -> None:
        self.due = due
        self.places = 0
        self._before: dict[int, str] = {}  # by frame, which nothing here keeps alive

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in FILES:
            return None
        frame.f_trace_opcodes = True
        if event == "call":
            self._before.pop(id(frame), None)
        if event == "opcode":
            before = self._before.get(id(frame), "")
            self._before[id(frame)] = _operation(frame.f_code, frame.f_lasti)
            if before.startswith(LOOKS):
                self.places += 1
                if self.places == self.due:
                    raise KeyboardInterrupt
        return self


def _operation(code: CodeType, at: int) -> str:
    return dis.opname[code.co_code[at]]


def with_lock(model: nn.Module) -> None:
    with model_lock(model):
        pass


def with_turn(model: Any) -> None:
    with turn(model):
        pass


def one_in_another(model: Any) -> None:
    with turn(model), model_lock(model), ExitStack() as stack:
        stack.enter_context(turn(model))


def after_an_error(model: Any) -> None:
    with contextlib.suppress(ZeroDivisionError), turn(model), model_lock(model):
        raise ZeroDivisionError


@pytest.fixture
def _ctrl_c() -> Iterator[None]:
    """Ctrl-C raises, also where the tests were started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@contextmanager
def taken_by_another_thread(model: nn.Module, held: Callable[[], object]) -> Iterator[None]:
    """So that whoever wants the model has to wait until `held` returns."""
    taken = threading.Event()

    def take() -> None:
        with model_lock(model):
            taken.set()
            held()

    thread = threading.Thread(target=take)
    thread.start()
    taken.wait()
    yield
    thread.join()


def free_for_another_thread(model: nn.Module, seconds: float = 5) -> bool:
    answers: list[bool] = []

    def ask() -> None:
        lock = model_lock(model)
        answers.append(lock.acquire(timeout=seconds))
        lock.release()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(10)
    return answers == [True]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize("use", [with_lock, with_turn, one_in_another, after_an_error])
@pytest.mark.one_in(3)
def test_whenever_it_comes(use: Callable[[nn.Module], None], waiting: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    before, places = sys.gettrace(), 0
    for due in count(1):
        with (
            taken_by_another_thread(model, lambda: time.sleep(0.004)) if waiting else nullcontext()
        ):
            trace = Interrupting(due)
            sys.settrace(trace)
            try:
                use(model)
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(before)
        assert free_for_another_thread(model), due
        if trace.places < due:
            break
        places = due
    assert places > 20
    report(f"{use.__name__}: Ctrl-C at {places} places")


@pytest.mark.usefixtures("_ctrl_c")
def test_while_another_thread_has_the_model() -> None:
    model = nn.Linear(2, 2)
    interrupted = threading.Event()
    with taken_by_another_thread(model, interrupted.wait):
        lock = model_lock(model)
        assert not lock.acquire(blocking=False)
        assert not lock.acquire(timeout=0.01)
        threading.Timer(0.05, _thread.interrupt_main).start()
        with pytest.raises(KeyboardInterrupt):
            lock.acquire()
        interrupted.set()
        assert not lock.is_owned()
        assert lock.acquire(timeout=60)
        assert lock.is_owned()
    assert not free_for_another_thread(model, seconds=0.01)
    del lock  # whoever loses a lock gives the model back
    assert free_for_another_thread(model)
