"""Lettered choices without documents: MMLU (arXiv:2009.03300) and C-Eval (arXiv:2305.08322)."""

from __future__ import annotations

import re
import string
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar

from rag_middle import ContextPrompt, FileFormatError
from rag_middle.evaluation import Condition, Item, get_field
from rag_middle.evaluation.tasks.base import require_one_of
from rag_middle_reproduce.tasks.file_task import BENCHMARKS, FileTask

_LETTER = re.compile(r"(?<![A-Za-z'])([A-Z])(?![A-Za-z'])")


@dataclass(frozen=True, kw_only=True)
class MultipleChoice(FileTask):
    """Questions with lettered choices and no documents: does a method do harm there?

    Questions come in turns from each subject, so that a limit takes as many of each. Before a
    question stand the first `num_shots` examples of its own subject.

    lm-evaluation-harness has both benchmarks, by log-likelihood of the letter (tasks ``mmlu`` and
    ``ceval-valid``); prefer it for numbers to be compared with others'.

    Attributes:
        data: JSON lines with ``question``, ``subject`` and either ``choices`` (texts) and
            ``answer`` (0-based, or a letter), as MMLU's, or ``A`` to ``D`` and ``answer``, as
            C-Eval's.
        shots: a file of the same format with the examples (MMLU's split ``dev``).
        num_shots: examples before each question.
        wording: ``"mmlu"`` or ``"ceval"``.
    """

    name: ClassVar[str] = "multiple_choice"
    title: ClassVar[str] = "Multiple choice without documents"
    source: ClassVar[str] = "MMLU"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    max_new_tokens: ClassVar[int] = 4

    shots: str | Path | None = None
    num_shots: int = 5
    wording: str = "mmlu"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of(self.name, [*BENCHMARKS[self.name]], wording=self.wording)

    def items(self, limit: int | None, seed: int) -> list[Item]:
        """The first `limit` questions, from each subject in turn.

        Raises:
            FileFormatError: a file that cannot be read, or has too few examples of a subject.
        """
        instruction = BENCHMARKS[self.name][self.wording]["instruction"]
        shots = {} if self.shots is None else self._by_subject(self.shots)
        in_turns = zip_longest(*self._by_subject(self.data).values())
        turns = [item for turn in in_turns for item in turn if item is not None]
        items = []
        for index, item in enumerate(turns[:limit]):
            subject = item.details["subject"]
            examples = shots.get(subject, [])[: self.num_shots]
            if self.shots is not None and len(examples) < self.num_shots:
                raise FileFormatError(
                    f"{Path(self.shots).name} has {len(examples)} examples of {subject!r}; "
                    f"{self.num_shots} stand before each question. Lower num_shots, or add some."
                )
            context = instruction.replace("{subject}", subject.replace("_", " "))
            context += "".join(f"{shown.question} {shown.answers[0]}\n\n" for shown in examples)
            items.append(
                Item(id=f"{index}", question=context + item.question, answers=item.answers)
            )
        return items

    def _by_subject(self, path: str | Path) -> dict[str, list[Item]]:
        """The questions of a file."""
        subjects = defaultdict(list)
        for item in super(MultipleChoice, replace(self, data=path)).items(None, 0):
            subjects[item.details["subject"]].append(item)
        return subjects

    def read(self, line: str, content: dict[str, Any]) -> Iterator[Item]:
        if "choices" in content:
            choices = get_field(content, "choices", list, line)
        else:
            choices = [get_field(content, letter, str, line) for letter in "ABCD"]
        letters = string.ascii_uppercase[: len(choices)]
        answer = content.get("answer")
        if isinstance(answer, int) and 0 <= answer < len(letters):
            answer = letters[answer]
        if not isinstance(answer, str) or len(answer) != 1 or answer not in letters:
            raise FileFormatError(
                f"{line}: 'answer' should be one of the letters {letters}, or a 0-based number; "
                f"got {answer!r}."
            )
        question = get_field(content, "question", str, line).strip()
        lettered = "\n".join(f"{a}. {text}" for a, text in zip(letters, choices, strict=True))
        yield Item(
            id="",
            question=f"{question}\n{lettered}\n{BENCHMARKS[self.name][self.wording]['answer']}",
            answers=(answer,),
            details={"subject": get_field(content, "subject", str, line)},
        )

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        return ContextPrompt(suffix=item.question)

    def scores(self, item: Item, condition: Condition, answer: str) -> dict[str, float]:
        letter = _LETTER.search(answer)
        return {"accuracy": float(letter is not None and letter[1] in item.answers)}
