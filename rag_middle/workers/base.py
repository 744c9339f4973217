"""Tasks that are done in this process, in several, or on a Ray cluster.

What a task gives depends on nothing but the task, so it does not matter who does it, nor when.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch

__all__ = ["InProcess", "MakeWork", "Workers", "torch_threads"]

Task = TypeVar("Task")
Result = TypeVar("Result")

#: Creates, where tasks are done, the function that does one, which other processes must be able to
#: import. It is called with the worker's device where workers have devices, else without arguments.
MakeWork = Callable[..., Callable[[Any], Any]]


class Workers(ABC, Generic[Task, Result]):
    """Does tasks.

    Attributes:
        count: of tasks that are done at the same time.
    """

    count: int = 1

    @abstractmethod
    def results(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        """The index of each task with its result, in the order of completion."""

    def close(self) -> None:
        """Release processes and other resources."""
        return


class InProcess(Workers[Task, Result]):
    """One task after the other, in this process.

    Args:
        work: does a task.
    """

    def __init__(self, work: Callable[[Task], Result]) -> None:
        self._work = work

    def results(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        for index, task in enumerate(tasks):
            yield index, self._work(task)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """PyTorch with `count` threads: sums depend on how they are split among threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
