"""What loaders of published long-context benchmarks share.

They read the files that a benchmark publishes or generates; none of its data comes with this
package. The formats were checked against the repositories that each loader names, with files of
invented content. The page on them is ``docs/published_benchmarks.md``.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from rag_middle.documents import ContextPrompt, Document
from rag_middle.errors import EvaluationConfigError, EvaluationDataError
from rag_middle.evaluation.conditions import CLOSED_BOOK, Condition, Item, arranged_documents
from rag_middle.evaluation.tasks.base import Task, require_whole
from rag_middle.evaluation.tasks.data_files import read_entries
from rag_middle.wording import counted

__all__ = ["PublishedTask", "cut_passages", "one_holding", "published_item"]

#: Where a text may be cut, the best first: after a line that is not empty, a sentence, a word.
_CUTS = (("\n", r"(?<=\S)\n"), (" ", r"(?<=[.!?]) "), (" ", r"(?<=\S) "))


@dataclass(frozen=True, kw_only=True)
class PublishedTask(Task):
    """Questions of a benchmark's file.

    Attributes:
        data: the file.
        documents: documents, or passages that a context is cut into, in a prompt; None for what
            the format says.
        moved: whether the gold document is moved through the positions that are measured.
            Questions without exactly one gold document are left out then, and `description` says
            how many. False: all questions as the file has them, without positions. None: moved
            where the file has a question with exactly one gold document.
    """

    #: Where the format comes from, with its licence.
    source: ClassVar[str]
    #: The file repeats a question with its gold document at several depths.
    repeats_depths: ClassVar[bool] = False

    data: str | Path
    documents: int | None = None
    moved: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.documents is not None:
            require_whole(self.name, 2, documents=self.documents)
        if self.moved and self.fixed_order:
            raise EvaluationConfigError(
                f"{self.name}: another order of its documents has another right answer, so none "
                "can be moved. Leave 'moved' out."
            )
        if not self._asked:
            raise EvaluationDataError(
                f"The data file {str(self.data)!r} is empty. Give a file in the format of "
                f"{self.source}."
            )
        if not self.num_positions:
            self._set(controls=(CLOSED_BOOK,))

    def _set_kind(self, line: str, entry: dict[str, Any]) -> None:
        """Set what depends on the kind of the first entry; by default nothing does.

        Raises:
            EvaluationDataError: it has another format.
        """

    @abstractmethod
    def _items(self, number: int, line: str, entry: dict[str, Any]) -> Iterable[Item]:
        """The questions of an entry; `gold` only where exactly one document holds the answer.

        Raises:
            EvaluationDataError: fields are missing, or are something else.
        """

    def _set(self, **values: object) -> None:
        """Set for this file what the class says for all."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @cached_property
    def _all(self) -> tuple[Item, ...]:
        items: list[Item] = []
        for number, (line, entry) in enumerate(read_entries(self.data)):
            if not number:
                self._set_kind(line, entry)
            items += self._items(number, line, entry)
        return tuple(items)

    @cached_property
    def _asked(self) -> tuple[Item, ...]:
        """The questions that are asked: all, or those whose gold document can be moved."""
        movable = [item for item in self._all if item.gold is not None and len(item.documents) > 1]
        name = Path(self.data).name
        if self.moved is False or self.fixed_order or (self.moved is None and not movable):
            if self.documents and any(len(i.documents) != self.documents for i in self._all):
                raise EvaluationConfigError(
                    f"{self.name}: the questions of {name} are asked with the documents that they "
                    "have; leave out the number of documents. It can be chosen where a gold "
                    "document is moved, and where a context is cut into passages."
                )
            return self._all
        if not movable:
            raise EvaluationDataError(
                f"{name}: no question has exactly one document that holds the answer, so there is "
                "none to move. Ask the questions as they are (moved=False)."
            )
        if self.repeats_depths:
            movable = list({item.question: item for item in reversed(movable)}.values())[::-1]
        fewest = min(len(item.documents) for item in movable)
        if self.documents is not None and fewest < self.documents:
            raise EvaluationDataError(
                f"{name} has a question with {counted(fewest, 'document')}. Ask for at most so "
                f"many (documents), got {self.documents}."
            )
        return tuple(_shortened(item, self.documents or fewest) for item in movable)

    @property
    def provenance(self) -> str:
        return f"{Path(self.data).name}, in the format of {self.source}"

    @property
    def num_positions(self) -> int:
        first = self._asked[0]
        fixed = self.moved is False or self.fixed_order or first.gold is None
        return 0 if fixed else len(first.documents)

    @property
    def num_questions(self) -> int:
        return len(self._asked)

    @property
    def description(self) -> str:
        left_out = ""
        if len(self._asked) < len(self._all):
            depths = ", or another depth of one" if self.repeats_depths else ""
            left_out = (
                f" ({len(self._all) - len(self._asked)} of {len(self._all)} left out: not exactly "
                f"one gold document{depths})"
            )
        documents = f", {self.num_positions} documents each" if self.num_positions else ""
        return (
            f"{self.title} in {Path(self.data).name}: "
            f"{counted(self.num_questions, 'question')}{left_out}{documents}"
        )

    def items(self, limit: int | None, seed: int) -> list[Item]:
        return list(self._asked[:limit])

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        around = item.details
        documents = arranged_documents(item, condition)
        return ContextPrompt(around["prefix"], documents, around["suffix"], around["separator"])


def published_item(
    number: int,
    question: str,
    answers: Sequence[str],
    documents: Sequence[Document],
    gold: int | None,
    **details: Any,
) -> Item:
    """The question of an entry.

    Args:
        number: of the entry, 0-based.
        question: as the model reads it.
        answers: that count as right.
        documents: as the file has them.
        gold: position of the gold document, 0-based; None unless there is exactly one.
        details: ``prefix``, ``suffix`` and ``separator`` of the prompt, and what scores need.
    """
    return Item(
        id=f"{number}",
        question=question,
        answers=tuple(answers),
        gold=None if gold is None else documents[gold],
        others=tuple(document for at, document in enumerate(documents) if at != gold),
        gold_position=gold or 0,
        details=details,
    )


def one_holding(documents: Sequence[Document], answers: Sequence[str]) -> int | None:
    """Which document holds an answer, in any case; None unless exactly one does."""
    wanted = [answer.lower() for answer in answers]
    holding = [
        index
        for index, text in enumerate(document.render().lower() for document in documents)
        if any(answer in text for answer in wanted)
    ]
    return holding[0] if len(holding) == 1 else None


def cut_passages(text: str, count: int, line: str) -> tuple[list[str], str]:
    """A text as passages of about the same length, and what stood between them.

    Cut at ends of lines where there are enough, else at ends of sentences, else at spaces, so that
    ``separator.join(passages)`` is the text.

    Args:
        text: without spaces at its ends.

    Raises:
        EvaluationDataError: the text has fewer words.
    """
    for separator, pattern in _CUTS:
        cuts = [match.start() for match in re.finditer(pattern, text)]
        if len(cuts) < count - 1:
            continue
        passages, start, first = [], 0, 0
        for number in range(1, count):
            last = len(cuts) - (count - number)  # leaves one cut for each of the rest
            chosen = bisect_left(cuts, number * len(text) // count, first, last)
            passages.append(text[start : cuts[chosen]])
            start, first = cuts[chosen] + len(separator), chosen + 1
        return [*passages, text[start:]], separator
    raise EvaluationDataError(
        f"{line}: the context has too few words for {count} passages. Ask for fewer (documents)."
    )


def _shortened(item: Item, documents: int) -> Item:
    """The item with so many documents, the gold one among them."""
    return replace(
        item,
        others=item.others[: documents - 1],
        gold_position=min(item.gold_position, documents - 1),
    )
