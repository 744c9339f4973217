"""What a task is: questions with documents, prompts made of them, and a score."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rag_middle.documents import ContextPrompt
from rag_middle.errors import ConfigError
from rag_middle.evaluation.conditions import (
    CLOSED_BOOK,
    GOLD_ONLY,
    Condition,
    Item,
    arranged_documents,
)
from rag_middle.evaluation.metrics import ANSWER_METRICS

if TYPE_CHECKING:
    from rag_middle.generation import RagMiddleModel


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """Questions, prompts and scores.

    Subclasses are frozen, keyword-only dataclasses that check their parameters when made; names of
    files become `Path` objects. The same parameters and seed give the same questions, and question
    `i` does not depend on how many are asked, so a run can be continued with more.

    Class attributes:
        name: under which it is registered.
        version: raised whenever questions, prompts or scores change, so that records of one
            version are never mixed with another's.
        metrics: names of the scores of a generated answer, keys of
            `rag_middle.evaluation.metrics.METRICS`; the first is the main one.
        max_new_tokens: of an answer.
        stop: strings that end an answer.
        system: a system message before every prompt; None for none.
        by_likelihood: whether there is one correct answer whose log-likelihood can be measured.
        controls: the conditions that the unmodified model can be asked under besides.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    title: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]] = ("best_subspan_em", "f1")
    max_new_tokens: ClassVar[int] = 32
    stop: ClassVar[tuple[str, ...]] = ()
    system: ClassVar[str | None] = None
    by_likelihood: ClassVar[bool] = True
    controls: ClassVar[tuple[Condition, ...]] = (GOLD_ONLY, CLOSED_BOOK)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if "Path" in str(field.type) and isinstance(value, str):
                object.__setattr__(self, field.name, Path(value))

    @property
    @abstractmethod
    def provenance(self) -> str:
        """Where questions and prompt come from, with the licence of what is not our own."""

    @property
    def num_positions(self) -> int:
        """Positions of the gold document: documents in a prompt; 0 without one gold document."""
        return 0

    @property
    def description(self) -> str:
        """What was recognised, for people: kind of questions, documents each."""
        documents = f", {self.num_positions} documents each" if self.num_positions else ""
        return f"{self.title} ({self.provenance}){documents}"

    @abstractmethod
    def items(self, limit: int | None, seed: int) -> list[Item]:
        """The first `limit` questions, or all.

        A question that the data repeats counts once (`distinct_questions`).

        Args:
            limit: most questions; None for all there are.
            seed: of whatever is drawn.

        Raises:
            FileFormatError: the data cannot be read, or does not suffice.
            ConfigError: a generated task was asked for all of its questions.
        """

    @abstractmethod
    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        """What the model reads."""

    def fitted(
        self, prompt: ContextPrompt, model: RagMiddleModel, new_tokens: int, template: str
    ) -> ContextPrompt:
        """The prompt as it is asked, for tasks whose long prompts are cut.

        Args:
            new_tokens: of the answer, which must fit too.
            template: as in generation.
        """
        return prompt

    def scores(self, item: Item, condition: Condition, answer: str) -> dict[str, float]:
        """The scores of a generated answer, by metric."""
        return {name: ANSWER_METRICS[name](answer, item.answers) for name in self.metrics}

    def target(self, item: Item, condition: Condition) -> str:
        """The answer whose log-likelihood is measured."""
        return item.answers[0]

    def to_dict(self) -> dict[str, Any]:
        """What makes its questions what they are, JSON-ready, for records and reports.

        Files go by name and digest, so that a file may move, and may not change.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        parameters = {
            name: _digest(value) if isinstance(value, Path) else value
            for name, value in values.items()
        }
        return {"task": self.name, "version": self.version, **parameters}


def as_continuation(answer: str, prompt: ContextPrompt, *, chat: bool) -> str:
    """The answer as it follows the prompt: after a space, unless a chat's turn begins with it."""
    return answer if chat or prompt.suffix[-1:].isspace() else f" {answer}"


def require_gold_documents(task: Task) -> None:
    """Raise ConfigError where a task has no gold document."""
    if not task.num_positions:
        raise ConfigError(
            f"{task.name} does not say which document holds the answer, so positions cannot be "
            "compared. Give data with gold documents, or compare methods as a whole in Python with "
            "rag_middle.evaluation.run."
        )


def require_whole(owner: str, least: int, **values: object) -> None:
    """Raise `ConfigError` unless all values are whole numbers of at least `least`."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{owner}: {name} must be a whole number >= {least}, got {value!r}.")


def require_one_of(owner: str, choices: Sequence[str], **values: object) -> None:
    """Raise `ConfigError` unless all values are among the choices."""
    for name, value in values.items():
        if value not in choices:
            raise ConfigError(
                f"{owner}: {name} must be one of {', '.join(choices)}, got {value!r}."
            )


def question_prompt(instruction: str, item: Item, condition: Condition) -> ContextPrompt:
    """Instruction, documents and question."""
    asked = f"Question: {item.question}\nAnswer:"
    return ContextPrompt(instruction, arranged_documents(item, condition), asked)


def _digest(path: Path) -> dict[str, str]:
    digest = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        if file.is_file():
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
    return {"name": path.name, "sha256": digest.hexdigest()}
