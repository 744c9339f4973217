"""A question with its documents, and the conditions under which it is asked.

A condition says which documents are in the prompt, and in which order. Its name stands in records:
``position:3``, ``position:3/10``, ``position:3+random_filler``, ``chain:4,12``, ``chain:4,12/1``,
``order:1``, ``gold_only``, ``gold_absent``, ``closed_book``, ``as_given``.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from rag_middle.documents import ContextPrompt, Document
from rag_middle.errors import ConfigError

Kind = Literal["position", "chain", "order", "gold_only", "gold_absent", "closed_book", "as_given"]

#: What else is done to a prompt: the others' own words, shuffled, stand in place of each of them,
#: so that there are as many documents, as long, and only the gold one says anything of the matter.
Change = Literal["random_filler"]
CHANGES: tuple[Change, ...] = get_args(Change)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One question of a task.

    Attributes:
        id: its name in records; the same for the same task and seed, however many questions are
            asked.
        question: as the model reads it.
        answers: what counts as right; the first one is the one whose log-likelihood is measured.
        gold: the document that holds the answer; None where nobody knows which one does, and
            where several are needed.
        golds: the documents that are needed together, in the order in which a reader goes from
            one to the next; empty where one is enough.
        others: the rest, in a fixed order.
        gold_position: 0-based position of `gold` among all documents as the task has them.
        details: what else the task needs to make a prompt or to score.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    gold: Document | None = None
    golds: tuple[Document, ...] = ()
    others: tuple[Document, ...] = ()
    gold_position: int = 0
    details: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def gold_documents(self) -> tuple[Document, ...]:
        """`gold` alone, or `golds`."""
        return (self.gold,) if self.gold else self.golds

    @property
    def documents(self) -> tuple[Document, ...]:
        """All documents, as the task has them."""
        before, after = self.others[: self.gold_position], self.others[self.gold_position :]
        return (*before, *self.gold_documents, *after)


def distinct_questions(items: Iterable[Item]) -> Iterator[Item]:
    """Items without those that repeat an earlier one, whose answers tell nothing new.

    A question repeats another with the same answers and gold documents, whatever spaces and case
    it has. Without gold documents nothing is known to repeat.
    """
    seen = set()
    for item in items:
        key = question_and_golds(item), item.answers
        if key not in seen:
            seen.add(key)
            yield item


def question_and_golds(item: Item) -> Hashable:
    """What repetitions of a question have in common; its id where no gold document is known."""
    golds = tuple(gold.text for gold in item.gold_documents)
    return (" ".join(item.question.casefold().split()), golds) if golds else item.id


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
            it in their order; ``"chain"``: the gold documents at the positions `golds`;
            ``"order"``: all documents in shuffled order number `index`; ``"gold_only"``: the gold
            documents alone; ``"gold_absent"``: the others alone; ``"closed_book"``: no documents;
            ``"as_given"``: the documents as the task has them.
        index: see `kind`; None for the others.
        documents: of ``"position"``: how many there are in the prompt, the first ones of the
            others; None for all that the task has.
        change: of ``"position"``: what else is done to the prompt; None for nothing.
        golds: of ``"chain"``: 0-based positions of the gold documents, in the order of the chain.
        hops: of ``"chain"``: the question asks for so many of the last steps; None for all.
    """

    kind: Kind
    index: int | None = None
    documents: int | None = None
    change: Change | None = None
    golds: tuple[int, ...] = ()
    hops: int | None = None

    @property
    def name(self) -> str:
        """Its name in records."""
        if self.golds:
            steps = "" if self.hops is None else f"/{self.hops}"
            return f"{self.kind}:{','.join(map(str, self.golds))}{steps}"
        if self.index is None:
            return self.kind
        among = "" if self.documents is None else f"/{self.documents}"
        changed = "" if self.change is None else f"+{self.change}"
        return f"{self.kind}:{self.index}{among}{changed}"

    @property
    def title(self) -> str:
        """In tables: ``at 3``, ``chain 4,12``."""
        if self.kind == "position":
            return f"at {self.index}"
        return self.name.replace("_", " ").replace(":", " ")


@dataclass(frozen=True, slots=True)
class Layout:
    """Conditions in rows and columns: what is measured where one position says too little.

    A task with several gold documents varies their distance and order, a chain of keys its length
    and position, and any task with a gold document may vary its number of documents.

    Attributes:
        row_title: what differs from row to row.
        column_title: what differs from column to column.
        rows: conditions by the heading of their column, by the name of their row; the first row is
            what the others are compared with. Each may have columns of its own.
    """

    row_title: str
    column_title: str
    rows: Mapping[str, Mapping[str, Condition]]

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Of all rows."""
        return tuple(condition for row in self.rows.values() for condition in row.values())


GOLD_ONLY = Condition("gold_only")
GOLD_ABSENT = Condition("gold_absent")
CLOSED_BOOK = Condition("closed_book")
AS_GIVEN = Condition("as_given")


def position(index: int, documents: int | None = None, change: Change | None = None) -> Condition:
    """The gold document at the 0-based position `index`, among so many or all of the documents."""
    return Condition("position", index, documents, change)


def chain(golds: Sequence[int], hops: int | None = None) -> Condition:
    """The gold documents at these 0-based positions, in the order of the chain.

    Args:
        golds: ``(4, 12)`` has the first step before the second, ``(12, 4)`` the other way round.
        hops: ask for so many of the last steps only; None for all.
    """
    return Condition("chain", golds=tuple(golds), hops=hops)


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
        ConfigError: a condition about gold documents of an item without any, or positions that the
            item does not have.
    """
    if condition.kind == "closed_book":
        return ()
    if condition.kind == "as_given":
        return item.documents
    if condition.kind == "gold_absent":
        return item.others
    if condition.kind == "order":
        shuffled = list(item.documents)
        # A string: random.Random takes its bytes, so every process shuffles alike.
        random.Random(f"{item.id} {condition.index}").shuffle(shuffled)
        return tuple(shuffled)
    golds = item.gold_documents
    if not golds:
        raise ConfigError(
            f"Question {item.id} has no gold document, so {condition.name} means nothing for it: "
            "use the conditions as_given and order."
        )
    if condition.kind == "gold_only":
        return golds
    others = item.others[: None if condition.documents is None else condition.documents - 1]
    positions = condition.golds if condition.index is None else (condition.index,)
    count = len(golds) + len(others)
    if len(positions) != len(golds) or not 0 <= min(positions) <= max(positions) < count:
        raise ConfigError(
            f"Question {item.id} has {len(golds)} gold among {count} documents, so "
            f"{condition.name} means nothing for it: give each of them a 0-based position."
        )
    if condition.change == "random_filler":
        others = tuple(_shuffled(document, f"{item.id} {at}") for at, document in enumerate(others))
    rest, gold_at = iter(others), dict(zip(positions, golds, strict=True))
    return tuple(gold_at[at] if at in gold_at else next(rest) for at in range(count))


def _shuffled(document: Document, seed: str) -> Document:
    """The document's own words, shuffled: as many tokens, more or less, and no statement."""
    words = document.render().split()
    random.Random(seed).shuffle(words)
    return Document(" ".join(words), id=document.id)
