"""Tasks of the papers that need data of their own; see `rag_middle.evaluation.Task`."""

from __future__ import annotations

import random
import re
import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rag_middle import ContextPrompt, Document, EvaluationDataError
from rag_middle.evaluation import (
    CLOSED_BOOK,
    TASKS,
    Condition,
    Item,
    Task,
    arranged_documents,
    as_answers,
    get_field,
    read_lines,
)

__all__ = ["LongContextQA", "MultipleChoice", "PairwiseJudge", "TimelineOrder"]

_PASSAGE = re.compile(r"(?m)^Passage \d+:\n")
_LETTER = re.compile(r"(?<![A-Za-z'])([A-Z])(?![A-Za-z'])")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, kw_only=True)
class _FileTask(Task):
    """Questions of a file, without gold documents unless a subclass says otherwise."""

    version: ClassVar[int] = 1
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
class LongContextQA(_FileTask):
    """Questions over a long context, scored by F1.

    A context in numbered passages, as LongBench's multi-document sets have it ("Passage 3:"), is
    taken apart into documents without their numbers; any other context is one document.

    Attributes:
        data: JSON lines in LongBench's format: ``context``, ``input`` (the question), ``answers``.
        instruction: before the context.
        dataset: take only lines with this ``dataset``; None for all.
    """

    name: ClassVar[str] = "long_context_qa"
    title: ClassVar[str] = "Question answering over long contexts"
    source: ClassVar[str] = "LongBench"
    metrics: ClassVar[tuple[str, ...]] = ("f1", "best_subspan_em")
    controls: ClassVar[tuple[Condition, ...]] = (CLOSED_BOOK,)

    instruction: str = (
        "Answer the question based on the given passages. Only give the answer, and no other "
        "words.\n\n"
    )
    dataset: str | None = None

    def items(self, limit: int | None, seed: int) -> list[Item]:
        lines = [
            (line, content)
            for line, content in read_lines(self.data)
            if self.dataset is None or content.get("dataset") == self.dataset
        ]
        items = []
        for index, (line, content) in enumerate(lines[:limit]):
            before, *passages = _PASSAGE.split(get_field(content, "context", str, line))
            texts = [before, *passages] if before.strip() else passages
            items.append(
                Item(
                    id=f"{index}",
                    question=get_field(content, "input", str, line),
                    answers=as_answers(content.get("answers"), line),
                    others=tuple(Document(text.strip()) for text in texts),
                )
            )
        return items

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        return ContextPrompt(
            self.instruction,
            arranged_documents(item, condition),
            f"Question: {item.question}\nAnswer:",
        )


@dataclass(frozen=True, kw_only=True)
class TimelineOrder(_FileTask):
    """Put numbered events of a long text into the order of time.

    Scored by the share of numbers that are right: 1 for the whole order, 0 where the answer is no
    order of the same events.

    Attributes:
        data: JSON lines with ``context``, ``question`` and ``answer``, numbers separated by commas
            (LooGLE's long-dependency questions); with ``task`` in a line, only those whose task
            names a timeline are taken.
    """

    name: ClassVar[str] = "timeline_order"
    title: ClassVar[str] = "Timeline reordering"
    source: ClassVar[str] = "LooGLE"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    controls: ClassVar[tuple[Condition, ...]] = (CLOSED_BOOK,)

    def items(self, limit: int | None, seed: int) -> list[Item]:
        lines = [
            (line, content)
            for line, content in read_lines(self.data)
            if "timeline" in str(content.get("task", "timeline")).lower()
        ]
        items = []
        for index, (line, content) in enumerate(lines[:limit]):
            answer = get_field(content, "answer", str, line)
            if len(_NUMBER.findall(answer)) < 2:
                raise EvaluationDataError(
                    f"{line}: 'answer' should be numbers of events in order, such as '2, 1, 3'; "
                    f"got {answer!r}."
                )
            items.append(
                Item(
                    id=f"{index}",
                    question=get_field(content, "question", str, line),
                    answers=(answer,),
                    others=(Document(get_field(content, "context", str, line)),),
                )
            )
        return items

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        return ContextPrompt(
            "Read the text, then put the events into the order of time.\n\n",
            arranged_documents(item, condition),
            f"{item.question}\nReply with the numbers of the events in their order, separated by "
            "commas.\nOrder:",
        )

    def scores(self, item: Item, condition: Condition, answer: str) -> dict[str, float]:
        wanted = _NUMBER.findall(item.answers[0])
        numbers = _NUMBER.findall(answer)[: len(wanted)]
        right = sum(a == b for a, b in zip(numbers, wanted, strict=False))
        is_order = sorted(numbers) == sorted(wanted)
        return {"accuracy": right / len(wanted) if is_order else 0.0}


class _LetterTask(_FileTask):
    """The answer is a letter."""

    metrics: ClassVar[tuple[str, ...]] = ("accuracy",)

    def scores(self, item: Item, condition: Condition, answer: str) -> dict[str, float]:
        letter = _LETTER.search(answer)
        return {"accuracy": float(letter is not None and letter[1] in item.answers)}


@dataclass(frozen=True, kw_only=True)
class PairwiseJudge(_LetterTask):
    """A model as judge: which of two answers is better, one of them known to be.

    The two answers are the documents, so methods may treat their order as meaningless; the gold
    document is the better one, and its two positions are the two orders. The letter of an answer is
    drawn once and stays with it, so between the orders nothing but the position changes (a judge's
    liking for a letter is not mistaken for a liking for a position). The flip rate is the share of
    inconsistent judgements.

    Attributes:
        data: JSON lines with ``prompt``, ``chosen`` and ``rejected`` (RewardBench's format).
    """

    name: ClassVar[str] = "pairwise_judge"
    title: ClassVar[str] = "Pairwise judging"
    source: ClassVar[str] = "RewardBench"
    max_new_tokens: ClassVar[int] = 8

    @property
    def num_positions(self) -> int:
        return 2

    def items(self, limit: int | None, seed: int) -> list[Item]:
        items = []
        for index, (line, content) in enumerate(list(read_lines(self.data))[:limit]):
            right, wrong = random.Random(f"{self.name} {seed} {index}").sample("AB", 2)
            better, worse = (
                Document(
                    f"Answer of assistant {letter}:\n{get_field(content, name, str, line)}",
                    id=letter,
                )
                for letter, name in ((right, "chosen"), (wrong, "rejected"))
            )
            question = get_field(content, "prompt", str, line)
            items.append(
                Item(
                    id=f"{index}", question=question, answers=(right,), gold=better, others=(worse,)
                )
            )
        return items

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        return ContextPrompt(
            "Two assistants, A and B, answered the question of a user. Judge which answer is "
            "better: more helpful, more correct, more to the point. Length and order say nothing. "
            f"Reply with one letter, A or B.\n\nQuestion of the user:\n{item.question}\n\n",
            arranged_documents(item, condition),
            "The better answer is:",
        )


@dataclass(frozen=True, kw_only=True)
class MultipleChoice(_LetterTask):
    """Questions with lettered choices and no documents, as in MMLU: does a method do harm there?

    Attributes:
        data: JSON lines with ``question``, ``choices`` (texts) and ``answer`` (the 0-based choice,
            or its letter).
        shots: a file of the same format whose questions, with answers, come before each question.
    """

    name: ClassVar[str] = "multiple_choice"
    title: ClassVar[str] = "Multiple choice without documents"
    source: ClassVar[str] = "MMLU"
    max_new_tokens: ClassVar[int] = 4

    shots: str | Path | None = None

    def items(self, limit: int | None, seed: int) -> list[Item]:
        examples = ""
        for line, content in read_lines(self.shots) if self.shots is not None else ():
            question, answer = _choices(line, content)
            examples += f"{question} {answer}\n\n"
        items = []
        for index, (line, content) in enumerate(list(read_lines(self.data))[:limit]):
            question, answer = _choices(line, content)
            items.append(Item(id=f"{index}", question=examples + question, answers=(answer,)))
        return items

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        return ContextPrompt(suffix=item.question)


def _choices(line: str, content: dict[str, Any]) -> tuple[str, str]:
    """The question with its choices, and the letter of the right one."""
    choices = get_field(content, "choices", list, line)
    letters = string.ascii_uppercase[: len(choices)]
    answer = content.get("answer")
    if isinstance(answer, int) and 0 <= answer < len(letters):
        answer = letters[answer]
    if not isinstance(answer, str) or len(answer) != 1 or answer not in letters:
        raise EvaluationDataError(
            f"{line}: 'answer' should be one of the letters {letters}, or a 0-based number; got "
            f"{answer!r}."
        )
    lettered = "\n".join(f"{a}. {text}" for a, text in zip(letters, choices, strict=True))
    return f"{get_field(content, 'question', str, line)}\n{lettered}\nAnswer:", answer


for _task in (LongContextQA, MultipleChoice, PairwiseJudge, TimelineOrder):
    TASKS.register(_task.name, _task)  # found without installing this package, too
