"""A question, its answers, and the documents it is asked with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rag_middle.documents import Document

__all__ = ["Item"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One question of a task.

    Attributes:
        id: its name in records; the same for the same task and seed, however many questions are
            asked.
        question: as the model reads it.
        answers: what counts as right; the first one is the one whose likelihood is measured.
        gold: the document that holds the answer; None where nobody knows which one does.
        others: the rest, in a fixed order.
        given: the place of `gold` among all documents as the task has them, 0-based.
        details: what else the task needs to make a prompt or to score.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    gold: Document | None = None
    others: tuple[Document, ...] = ()
    given: int = 0
    details: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def documents(self) -> tuple[Document, ...]:
        """All documents, as the task has them."""
        if self.gold is None:
            return self.others
        return (*self.others[: self.given], self.gold, *self.others[self.given :])
