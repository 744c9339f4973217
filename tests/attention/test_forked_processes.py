"""A process that was forked while threads of the first one were at work."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest
from transformers import LlamaConfig

from rag_middle.attention import model_lock
from rag_middle.errors import MethodConfigError
from rag_middle.generation.prompts import LockedTokenizer
from tests.tiny_models import build, tiny
from tests.tokenizers import byte_level_bpe

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows cannot fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def forked(work: Callable[[], int]) -> int:
    """What `work` returns in a forked process, while another thread of this one waits."""
    process = os.fork()
    if not process:
        ended = 99
        try:
            ended = work()
        finally:
            os._exit(ended)
    late = threading.Timer(30, os.kill, (process, 9))
    late.start()
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    late.cancel()
    return status


def test_a_model_that_another_thread_had_is_refused() -> None:
    model = build("forked", tiny(LlamaConfig), "sdpa")
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with model_lock(model):
            held.set()
            done.wait(60)

    def take() -> int:
        try:
            model_lock(model).acquire()
        except MethodConfigError as error:
            return 7 if "forked" in str(error) else 8
        return 9

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        assert forked(take) == 7
        assert not model_lock(model).acquire(blocking=False)  # here it is as it was
    finally:
        done.set()
        thread.join()
    with model_lock(model):
        assert forked(lambda: int(model_lock(model).acquire(timeout=5))) == 1  # of this very thread
    assert forked(lambda: int(model_lock(model).acquire(timeout=5))) == 1


def test_a_tokenizer_that_another_thread_had_is_free() -> None:
    tokenizer = LockedTokenizer(byte_level_bpe())
    with tokenizer._lock:
        assert forked(lambda: tokenizer.count("fox") and 5) == 5
    assert forked(lambda: tokenizer.count("fox") and 5) == 5
