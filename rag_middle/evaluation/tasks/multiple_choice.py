"""Multiple choice without documents: does a method harm what has nothing to do with it?"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rag_middle.documents import ContextPrompt
from rag_middle.errors import EvaluationDataError
from rag_middle.evaluation.conditions import Condition
from rag_middle.evaluation.items import Item
from rag_middle.evaluation.tasks.base import Task
from rag_middle.evaluation.tasks.reading import field, lines_of

__all__ = ["MultipleChoice"]


@dataclass(frozen=True, kw_only=True)
class MultipleChoice(Task):
    """Questions with lettered choices, as in MMLU.

    Attributes:
        data: JSON lines with ``question``, ``choices`` (texts) and ``answer`` (the 0-based choice,
            or its letter).
        shots: a file of the same format whose questions, with answers, come before each question.
    """

    name: ClassVar[str] = "multiple_choice"
    version: ClassVar[int] = 1
    title: ClassVar[str] = "Multiple choice without documents"
    metrics: ClassVar[tuple[str, ...]] = ("choice_accuracy",)
    max_new_tokens: ClassVar[int] = 4
    controls: ClassVar[tuple[Condition, ...]] = ()

    data: str | Path
    shots: str | Path | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", Path(self.data))
        if self.shots is not None:
            object.__setattr__(self, "shots", Path(self.shots))

    @property
    def provenance(self) -> str:
        return f"{Path(self.data).name}, in the format of MMLU"

    @property
    def places(self) -> int:
        return 0

    def items(self, limit: int | None, seed: int) -> list[Item]:
        examples = ""
        if self.shots is not None:
            shown = [
                _read(at, each, place) for at, (place, each) in enumerate(lines_of(self.shots))
            ]
            examples = "".join(f"{each.question} {each.answers[0]}\n\n" for each in shown)
        lines = list(lines_of(self.data))[:limit]
        return [_read(at, each, place, examples) for at, (place, each) in enumerate(lines)]

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        return ContextPrompt(suffix=item.details["examples"] + item.question)

    def scores(self, item: Item, condition: Condition, answer: str) -> dict[str, float]:
        said = re.search(r"(?<![A-Za-z'])([A-Z])(?![A-Za-z'])", answer)
        return {"choice_accuracy": float(said is not None and said.group(1) in item.answers)}


def _read(index: int, content: dict[str, Any], place: str, examples: str = "") -> Item:
    choices = field(content, "choices", list, place)
    letters = string.ascii_uppercase[: len(choices)]
    answer = content.get("answer")
    if isinstance(answer, int) and 0 <= answer < len(letters):
        answer = letters[answer]
    if not isinstance(answer, str) or len(answer) != 1 or answer not in letters:
        raise EvaluationDataError(
            f"{place}: 'answer' should be one of the letters {letters}, or a 0-based place; got "
            f"{content.get('answer')!r}."
        )
    lettered = "\n".join(f"{a}. {text}" for a, text in zip(letters, choices, strict=True))
    question = f"{field(content, 'question', str, place)}\n{lettered}\nAnswer:"
    return Item(id=f"{index}", question=question, answers=(answer,), details={"examples": examples})
