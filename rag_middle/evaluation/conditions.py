"""Under which condition a question is asked: which documents it gets, and in which order.

A condition has a name that records carry: ``position:3``, ``order:1``, ``gold_only``,
``closed_book``, ``as_given``.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from rag_middle.documents import Document
from rag_middle.errors import EvaluationConfigError
from rag_middle.evaluation.items import Item

__all__ = [
    "AS_GIVEN",
    "CLOSED_BOOK",
    "GOLD_ONLY",
    "Condition",
    "arranged_documents",
    "order",
    "position",
    "spread_positions",
]

Kind = Literal["position", "order", "gold_only", "closed_book", "as_given"]


@dataclass(frozen=True, slots=True)
class Condition:
    """What a question is asked with.

    Attributes:
        kind: ``"position"``: the gold document at 0-based place `index`, the others around it in
            their order; ``"order"``: all documents in shuffled order number `index`;
            ``"gold_only"``: the gold document alone; ``"closed_book"``: no documents;
            ``"as_given"``: the documents as the task has them.
        index: see `kind`; None for the others.
    """

    kind: Kind
    index: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise EvaluationConfigError(
                f"A condition is one of {', '.join(get_args(Kind))}; got {self.kind!r}."
            )
        numbered = self.kind in ("position", "order")
        if numbered != (self.index is not None):
            raise EvaluationConfigError(
                f"Condition {self.kind!r} takes {'an' if numbered else 'no'} index, got "
                f"{self.index!r}."
            )

    @property
    def name(self) -> str:
        """Its name in records."""
        return self.kind if self.index is None else f"{self.kind}:{self.index}"


GOLD_ONLY = Condition("gold_only")
CLOSED_BOOK = Condition("closed_book")
AS_GIVEN = Condition("as_given")


def position(index: int) -> Condition:
    """The gold document at 0-based place `index`."""
    return Condition("position", index)


def order(index: int) -> Condition:
    """All documents shuffled, order number `index`."""
    return Condition("order", index)


def spread_positions(places: int, count: int) -> tuple[int, ...]:
    """`count` 0-based places out of `places`, spread evenly from the first to the last.

    Twenty places and five positions give 0, 4, 9, 14, 19, as in the Lost in the Middle benchmark
    (arXiv:2307.03172).

    Raises:
        EvaluationConfigError: fewer than two places or positions.
    """
    if places < 2 or count < 2:
        raise EvaluationConfigError(
            "Positions can only be compared with at least two documents and two positions; got "
            f"{places} documents and {count} positions."
        )
    count = min(count, places)
    return tuple(at * (places - 1) // (count - 1) for at in range(count))


def arranged_documents(item: Item, condition: Condition) -> tuple[Document, ...]:
    """The documents of `item` in the order in which they go into the prompt.

    Raises:
        EvaluationConfigError: a condition about the gold document of an item without one, or a
            place that the item does not have.
    """
    if condition.kind == "closed_book":
        return ()
    if condition.kind == "as_given":
        return item.documents
    if condition.kind == "order":
        everything = list(item.documents)
        # A string: random.Random takes its bytes, so every process shuffles alike.
        random.Random(f"{item.id} {condition.index}").shuffle(everything)
        return tuple(everything)
    if item.gold is None:
        raise EvaluationConfigError(
            f"Question {item.id} has no gold document, so {condition.name} means nothing for it: "
            "use the conditions as_given and order."
        )
    if condition.kind == "gold_only":
        return (item.gold,)
    return _inserted(item.others, item.gold, condition.index or 0, item.id)


def _inserted(
    others: Sequence[Document], gold: Document, at: int, item_id: str
) -> tuple[Document, ...]:
    if not 0 <= at <= len(others):
        raise EvaluationConfigError(
            f"Question {item_id} has {len(others) + 1} documents, so its gold document cannot "
            f"stand at place {at} (0-based)."
        )
    return (*others[:at], gold, *others[at:])
