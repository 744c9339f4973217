"""Threads that run a model, ended before the interpreter is."""

from __future__ import annotations

import atexit
import ctypes
import threading
import time
from collections.abc import Callable, Sequence

_TOKEN_SECONDS = 1.0  # for the token under way
_OPERATION_SECONDS = 4.0  # then, for the operation of PyTorch under way


class ModelThread(threading.Thread):
    """A daemon thread that has ended when the program does.

    Once the interpreter shuts down, it ends each daemon thread that comes back to Python. If that
    happens below PyTorch's C++, the process aborts (SIGABRT) and its exit status is lost.

    Args:
        target: to be run.
        name: of the thread.
        stop: called when the program ends; asks `target` to return soon.
    """

    def __init__(
        self, target: Callable[[], object], *, name: str, stop: Callable[[], object] | None = None
    ) -> None:
        super().__init__(target=target, name=name, daemon=True)
        self._stop_target = stop

    def stop(self) -> None:
        """Ask the thread to end."""
        if self._stop_target is not None:
            self._stop_target()


@atexit.register
def _end_model_threads() -> None:
    """End the threads that run; a forked process has none."""
    running = [thread for thread in threading.enumerate() if isinstance(thread, ModelThread)]
    for thread in running:
        thread.stop()
    _join(running, _TOKEN_SECONDS)
    for thread in running:
        if thread.is_alive():  # a token takes long: a prompt on a CPU, say
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit)
            )
    _join(running, _OPERATION_SECONDS)


def _join(threads: Sequence[threading.Thread], seconds: float) -> None:
    until = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
