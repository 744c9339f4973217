"""Questions whose gold document is there, and is not: does the model say that it does not know?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from rag_middle.documents import ContextPrompt
from rag_middle.errors import ConfigError
from rag_middle.evaluation.conditions import (
    GOLD_ABSENT,
    Condition,
    Item,
    Layout,
    position,
    spread_positions,
)
from rag_middle.evaluation.metrics import answer_stated, states
from rag_middle.evaluation.tasks import shipped_questions, task_for_file
from rag_middle.evaluation.tasks.base import (
    Task,
    question_prompt,
    require_gold_documents,
    require_whole,
)

#: What counts as saying that one does not know.
PHRASES = (
    *("i don't know", "i do not know", "don't know the answer", "unknown", "unanswerable"),
    *("no answer", "cannot answer", "can't answer", "cannot be answered", "no information"),
    *("cannot be determined", "cannot determine", "can't determine", "none of the documents"),
    *("not enough information", "insufficient information"),
    *(f"{verb} not {done}" for verb in ("is", "are") for done in ("mentioned", "stated", "given")),
    *("not specified", "not provided", "don't mention"),
    *(f"{verb} not {do}" for verb in ("does", "do") for do in ("mention", "say", "contain")),
)


def abstains(answer: str, phrases: Sequence[str] = PHRASES) -> bool:
    """Whether an answer says that the model does not know.

    It does where it contains one of the phrases as whole words, in any case and with any kind of
    apostrophe and spaces. An empty answer says nothing, and is no abstention.
    """
    return any(states(answer, phrase) for phrase in phrases)


@dataclass(frozen=True, kw_only=True)
class Abstention(Task):
    """The same questions with their gold document and without it, among equally many documents.

    With it, the answer is right (``accuracy``) where it states the value and does not abstain;
    without it, where it abstains. ``abstained`` is the share of answers that say so. All others are
    false: wrong with the gold document, and made up without it. Questions another of whose
    documents holds the answer are left out, as they could be answered.

    Attributes:
        data: questions with gold documents, as for `OwnQuestions`; None for those that come with
            the package.
        documents: in a prompt; None for one less than the first line of `data` has, as the gold
            document has to be replaced; 9 without `data`.
        phrases: what counts as "does not know", see `abstains`.
        instruction: before the documents.
    """

    name: ClassVar[str] = "abstention"
    version: ClassVar[int] = 7
    title: ClassVar[str] = "Questions with and without their gold document"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "abstained")
    by_likelihood: ClassVar[bool] = False

    data: str | Path | None = None
    documents: int | None = None
    phrases: tuple[str, ...] = PHRASES
    instruction: str = (
        "Answer the question from the documents. If none of them holds the answer, say: I don't "
        "know.\n\n"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "phrases", tuple(self.phrases))
        if not self.phrases:
            raise ConfigError(f"{self.name}: phrases must be at least one text.")
        if self.documents is None:
            object.__setattr__(self, "documents", self._questions.num_positions - 1)
        require_whole(self.name, 2, documents=self.documents)

    @cached_property
    def _questions(self) -> Task:
        """Where questions come from, with one document more than a prompt has."""
        options = {} if self.documents is None else {"documents": self.documents + 1}
        if self.data is None:
            return shipped_questions(**options)
        task = task_for_file(self.data, **options)
        require_gold_documents(task)
        return task

    @property
    def provenance(self) -> str:
        return self._questions.provenance

    def layout(self, columns: int) -> Layout:
        assert self.documents is not None  # set when made
        positions = spread_positions(self.documents, columns)
        present = {f"at {index}": position(index, self.documents) for index in positions}
        rows = {"present": present, "absent": {"nowhere": GOLD_ABSENT}}
        return Layout("Gold document", "Position of the gold document", rows)

    def items(self, limit: int | None, seed: int) -> list[Item]:
        def answered_elsewhere(item: Item) -> bool:
            return any(answer_stated(other.render(), item.answers) for other in item.others)

        items = self._questions.items(None, seed)
        return [item for item in items if not answered_elsewhere(item)][:limit]

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        return question_prompt(self.instruction, item, condition)

    def scores(self, item: Item, condition: Condition, answer: str) -> dict[str, float]:
        abstained = abstains(answer, self.phrases)
        if condition.kind in ("gold_absent", "closed_book"):
            right = abstained
        else:
            right = bool(answer_stated(answer, item.answers)) and not abstained
        return {"accuracy": float(right), "abstained": float(abstained)}
