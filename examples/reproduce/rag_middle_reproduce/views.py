"""What a configuration shows where it asks no questions: pictures and numbers of one model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from rag_middle import RagMiddleModel
from rag_middle.evaluation import LabelledMethod, Measurement, Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Asked(NamedTuple):
    """A task whose prompts are read, with its label in the configuration."""

    label: str
    task: Task
    measurement: Measurement


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One picture or table.

    Attributes:
        name: of its file, and of its heading.
        numbers: JSON-ready.
        figure: the picture, if it is one.
        table: Markdown, if it is a table.
    """

    name: str
    numbers: Mapping[str, Any]
    figure: Figure | None = None
    table: str = ""


class View(ABC):
    """What is looked at; the fields of a subclass are those of a configuration's entry."""

    #: As models are loaded for it; None for any.
    attn_implementation: str | None = None

    def tried_out(self) -> View:
        """The same, small enough for the default model of trials."""
        return self

    @abstractmethod
    def shown(
        self, model: RagMiddleModel, asked: Sequence[Asked], methods: Sequence[LabelledMethod]
    ) -> Iterator[Shown]:
        """Pictures and tables of a model, one after the other.

        Raises:
            ConfigError: what the model or the tasks do not have.
            UnsupportedArchitectureError: the model's attention cannot be reached.
        """
