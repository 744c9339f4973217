"""Several processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import resource_tracker
from threading import Thread
from traceback import format_exception
from typing import TYPE_CHECKING, Any

import torch
from transformers.utils.logging import disable_progress_bar

from rag_middle.errors import WorkerConfigError, WorkerError
from rag_middle.workers.base import MakeWork, Result, Task, Workers

if TYPE_CHECKING:
    from multiprocessing.queues import SimpleQueue

__all__ = ["Processes", "Worker"]

_MAX_DEATHS = 3  # in a row, without a result


class Processes(Workers[Task, Result]):
    """Several processes of this machine, each with a model of its own.

    If one dies, all are started again and do the tasks that are left.

    Args:
        make_work: called in each process.
        count: of processes.
        threads_each: of PyTorch in each process.
        devices: one for each process (`worker_devices`), which `make_work` is called with.

    Raises:
        WorkerConfigError: another number of devices than of processes.
    """

    def __init__(
        self,
        make_work: MakeWork,
        count: int,
        threads_each: int,
        devices: Sequence[str] = (),
    ) -> None:
        if devices and len(devices) != count:
            raise WorkerConfigError(
                f"There are {count} worker processes and {len(devices)} devices: give one device "
                "for each, or none."
            )
        self._worker_args = make_work, threads_each
        self._devices = tuple(devices)
        self.count = count
        self._pool: ProcessPoolExecutor | None = None

    def results(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        left = dict(enumerate(tasks))
        deaths = 0
        while left:
            try:
                with _interrupts_blocked():
                    if self._pool is None:
                        self._pool = self._start()
                    futures: dict[Future[Result], int] = {
                        self._pool.submit(_do_in_worker, task): index
                        for index, task in left.items()
                    }
                for future in as_completed(futures):
                    result = future.result()
                    deaths = 0
                    del left[futures[future]]
                    yield futures[future], result
            except BrokenProcessPool as error:
                self.close()
                deaths += 1
                if deaths >= _MAX_DEATHS:
                    raise WorkerError(
                        f"Worker processes ended {deaths} times in a row without a result "
                        f"({error}). Memory is the usual reason: use fewer workers. What was "
                        "done is kept: the same command continues from there."
                    ) from error

    def _start(self) -> ProcessPoolExecutor:
        # A forked process would inherit locks of threads it does not have.
        context = multiprocessing.get_context("spawn")
        devices = None
        if self._devices:
            devices = context.SimpleQueue()  # of which every process takes one when it starts
            for device in self._devices:
                devices.put(device)
        return ProcessPoolExecutor(
            self.count,
            mp_context=context,
            initializer=_start_worker,
            initargs=(*self._worker_args, devices),
        )

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


class Worker:
    """Does tasks in a process of its own.

    What does them is created for the first task, so that an error in creating it reaches the
    caller as itself, and not as a process that ended.
    """

    def __init__(self, make_work: MakeWork, threads_each: int, device: str | None = None) -> None:
        torch.set_num_threads(threads_each)
        self._make_work = make_work if device is None else partial(make_work, device)
        self._work: Callable[[Any], Any] | None = None

    def do(self, task: Any) -> Any:
        """The result of a task."""
        if self._work is None:
            self._work = self._make_work()
        return self._work(task)


_worker: Worker | None = None  # of this process
_is_busy = _is_interrupted = False  # likewise


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C until the end of the block, and in processes started here until `_start_worker`.

    A process that is importing PyTorch would answer it with a traceback, and so would one whose
    parent stopped before it had sent all there is to know.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # which, started in the block, would let Ctrl-C through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    # The mask is this thread's. Any other thread may take the signal, and then the main one raises.
    handler = None
    came: list[int] = []
    if threading.current_thread() is threading.main_thread():
        handler = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if came:
            signal.raise_signal(signal.SIGINT)


def _start_worker(make_work: MakeWork, threads_each: int, devices: SimpleQueue[str] | None) -> None:
    global _worker
    # A terminal sends Ctrl-C to every process of the command; the first one says what happened.
    signal.signal(signal.SIGINT, _interrupted)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    _end_with_parent()
    disable_progress_bar()  # of loading weights: the command has one of its own
    _worker = Worker(make_work, threads_each, None if devices is None else devices.get())


def _interrupted(*_: object) -> None:
    """End this process, but not between tasks: it may hold a lock of the queues there.

    The other workers, and the pool that waits for them, would wait for it for ever.
    """
    global _is_interrupted
    _is_interrupted = True
    if _is_busy:
        os._exit(1)


def _do_in_worker(task: Any) -> Any:
    global _is_busy
    _is_busy = True
    try:
        return _done(task)
    finally:
        _is_busy = False


def _done(task: Any) -> Any:
    if _is_interrupted:
        os._exit(1)
    if _worker is None:
        raise RuntimeError("_start_worker was not called in this process")
    try:
        return _worker.do(task)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))  # our own, in the process that made it
        except Exception:
            # It would reach the parent as the end of this process, or as another error.
            raise WorkerError(
                f"A worker failed with {type(error).__name__}: {error}\n"
                f"{''.join(format_exception(error)).rstrip()}"
            ) from None
        raise


def _end_with_parent() -> None:
    """End this process when the one that started it ends, even if that one was killed.

    The pool's queue stays open in each of its workers, so none of them would notice, and each
    holds a model.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:

        def wait_for_parent() -> None:
            parent.join()
            os._exit(1)

        Thread(target=wait_for_parent, name="end with parent", daemon=True).start()
