"""What the tasks of data files share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from rag_middle import (
    ConfigError,
    FileFormatError,
)
from rag_middle.evaluation import CLOSED_BOOK, Condition, Task, read_entries
from rag_middle_reproduce.tasks.cutting import CutTask

__all__ = ["ContextTask", "FileTask", "choose"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class FileTask(Task):
    """Questions of a file, without gold documents unless a subclass says otherwise."""

    version: ClassVar[int] = 2
    source: ClassVar[str]
    controls: ClassVar[tuple[Condition, ...]] = ()

    data: str | Path

    @property
    def provenance(self) -> str:
        return f"{Path(self.data).name}, in the format of {self.source}"

    @property
    def num_positions(self) -> int:
        return 0


@dataclass(frozen=True, kw_only=True)
class ContextTask(CutTask, FileTask):
    """Questions about one long text, whose prompts lose their middle where they do not fit.

    Attributes:
        data: JSON lines in the format of `source`.
    """

    controls: ClassVar[tuple[Condition, ...]] = (CLOSED_BOOK,)
    by_likelihood: ClassVar[bool] = False

    def _set(self, **values: Any) -> None:
        """Settings that the chosen dataset decides."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _lines(
        self, limit: int | None, wanted: Callable[[dict[str, Any]], bool] = lambda content: True
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """The first `limit` lines that are `wanted`.

        Raises:
            FileFormatError: there is none.
        """
        found = False
        lines = ((name, line) for name, line in read_entries(self.data) if wanted(line))
        for entry in islice(lines, limit):
            found = True
            yield entry
        if not found:
            raise FileFormatError(
                f"{Path(self.data).name} has no line for {self!r}. See which dataset it holds."
            )


def choose(task: str, parameter: str, value: str, choices: dict[str, T]) -> T:
    """The choice of that name.

    Raises:
        ConfigError: there is none.
    """
    if value not in choices:
        raise ConfigError(
            f"{task}: {parameter} must be one of {', '.join(choices)}, got {value!r}."
        )
    return choices[value]
