"""What the tasks of data files share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import yaml

from rag_middle import FileFormatError
from rag_middle.evaluation import CLOSED_BOOK, Condition, Item, Task, read_entries
from rag_middle_reproduce.tasks.cutting import CutTask

#: Prompts and settings of the benchmarks, by task.
BENCHMARKS: Mapping[str, Any] = yaml.safe_load(
    Path(__file__).with_name("benchmarks.yaml").read_text(encoding="utf-8")
)


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

    def items(self, limit: int | None, seed: int) -> list[Item]:
        lines = read_entries(self.data)
        read = (item for line, content in lines for item in self.read(line, content))
        numbered = enumerate(islice(read, limit))
        items = [replace(item, id=item.id or f"{index}") for index, item in numbered]
        if not items:
            raise FileFormatError(
                f"{Path(self.data).name} has no question for {self!r}. See which dataset it holds."
            )
        return items

    @abstractmethod
    def read(self, line: str, content: dict[str, Any]) -> Iterator[Item]:
        """The questions of a line, if any, which are numbered where they have no id."""


@dataclass(frozen=True, kw_only=True)
class ContextTask(CutTask, FileTask):
    """Questions about one long text, whose prompts lose their middle where they do not fit."""

    controls: ClassVar[tuple[Condition, ...]] = (CLOSED_BOOK,)
    by_likelihood: ClassVar[bool] = False
