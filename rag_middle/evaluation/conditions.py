"""A question with its documents, and the conditions under which it is asked.

A condition says which documents are in the prompt, and in which order. Its name stands in records:
``position:3``, ``order:1``, ``gold_only``, ``closed_book``, ``as_given``.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rag_middle.documents import ContextPrompt, Document
from rag_middle.errors import ConfigError

Kind = Literal["position", "order", "gold_only", "closed_book", "as_given"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One question of a task.

    Attributes:
        id: its name in records; the same for the same task and seed, however many questions are
            asked.
        question: as the model reads it.
        answers: what counts as right; the first one is the one whose log-likelihood is measured.
        gold: the document that holds the answer; None where nobody knows which one does.
        others: the rest, in a fixed order.
        gold_position: 0-based position of `gold` among all documents as the task has them.
        details: what else the task needs to make a prompt or to score.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    gold: Document | None = None
    others: tuple[Document, ...] = ()
    gold_position: int = 0
    details: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def documents(self) -> tuple[Document, ...]:
        """All documents, as the task has them."""
        if self.gold is None:
            return self.others
        return (*self.others[: self.gold_position], self.gold, *self.others[self.gold_position :])


def distinct_questions(items: Iterable[Item]) -> Iterator[Item]:
    """Items without those that repeat an earlier one, whose answers tell nothing new.

    A question repeats another with the same answers and gold document, whatever spaces and case
    it has. Without a gold document nothing is known to repeat.
    """
    seen = set()
    for item in items:
        key = question_and_gold(item), item.answers
        if key not in seen:
            seen.add(key)
            yield item


def question_and_gold(item: Item) -> Hashable:
    """What repetitions of a question have in common; its id where no gold document is known."""
    if item.gold is None:
        return item.id
    return " ".join(item.question.casefold().split()), item.gold.text


def question_digest(prompt: ContextPrompt, answers: Sequence[str]) -> str:
    """By which a profile knows a question that its search asked, whatever the documents.

    And whatever the instruction, which stands before them.
    """
    content = json.dumps([prompt.suffix, list(answers)])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Condition:
    """Which documents a question is asked with.

    Attributes:
        kind: ``"position"``: the gold document at the 0-based position `index`, the others around
            it in their order; ``"order"``: all documents in shuffled order number `index`;
            ``"gold_only"``: the gold document alone; ``"closed_book"``: no documents;
            ``"as_given"``: the documents as the task has them.
        index: see `kind`; None for the others.
    """

    kind: Kind
    index: int | None = None

    @property
    def name(self) -> str:
        """Its name in records."""
        return self.kind if self.index is None else f"{self.kind}:{self.index}"

    @property
    def title(self) -> str:
        """In tables: ``at 3``, ``order 1``."""
        if self.kind == "position":
            return f"at {self.index}"
        return self.name.replace("_", " ").replace(":", " ")


GOLD_ONLY = Condition("gold_only")
CLOSED_BOOK = Condition("closed_book")
AS_GIVEN = Condition("as_given")


def position(index: int) -> Condition:
    """The gold document at the 0-based position `index`."""
    return Condition("position", index)


def order(index: int) -> Condition:
    """All documents shuffled, order number `index`."""
    return Condition("order", index)


def spread_positions(documents: int, count: int) -> tuple[int, ...]:
    """`count` 0-based positions among `documents`, spread evenly from the first to the last.

    Five positions among twenty documents are 0, 4, 9, 14, 19, as in the Lost in the Middle
    benchmark (arXiv:2307.03172).

    Raises:
        ConfigError: fewer than two documents or positions.
    """
    if documents < 2 or count < 2:
        raise ConfigError(
            "Positions can only be compared with at least two documents and two positions; got "
            f"{documents} documents and {count} positions."
        )
    count = min(count, documents)
    return tuple(index * (documents - 1) // (count - 1) for index in range(count))


def arranged_documents(item: Item, condition: Condition) -> tuple[Document, ...]:
    """The documents of `item` in the order in which they go into the prompt.

    Raises:
        ConfigError: a condition about the gold document of an item without one, or a position that
            the item does not have.
    """
    if condition.kind == "closed_book":
        return ()
    if condition.kind == "as_given":
        return item.documents
    if condition.kind == "order":
        shuffled = list(item.documents)
        # A string: random.Random takes its bytes, so every process shuffles alike.
        random.Random(f"{item.id} {condition.index}").shuffle(shuffled)
        return tuple(shuffled)
    if item.gold is None:
        raise ConfigError(
            f"Question {item.id} has no gold document, so {condition.name} means nothing for it: "
            "use the conditions as_given and order."
        )
    if condition.kind == "gold_only":
        return (item.gold,)
    at, others = condition.index, item.others
    if at is None or not 0 <= at <= len(others):
        raise ConfigError(
            f"Question {item.id} has {len(others) + 1} documents, so {condition.name} means "
            "nothing for it: give a 0-based position."
        )
    return (*others[:at], item.gold, *others[at:])
