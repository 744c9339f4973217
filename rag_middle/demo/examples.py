"""A few questions, answered from the same documents in several orders."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rag_middle.answering import PromptTemplate
from rag_middle.answering.citations import cites
from rag_middle.documents import Document
from rag_middle.evaluation import Item, LabelledMethod
from rag_middle.evaluation.metrics import answer_stated
from rag_middle.generation import RagMiddleModel

__all__ = ["ORDERS", "Example", "Reply", "answered_examples"]

ORDERS = ("as found", "reversed", "shuffled", "shuffled again")
"""Orders of the documents, the best first in the first one."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model wrote.

    Attributes:
        text: without spaces around it.
        right: whether it states the answer.
        cited: whether it names the page that answers.
    """

    text: str
    right: bool
    cited: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One question under several methods.

    Attributes:
        question: as it was asked.
        answer: the right one.
        page: title of the page that has it.
        places: 0-based place of that page in each of `ORDERS`.
        documents: in the prompt.
        replies: by method label, one for each of `ORDERS`.
    """

    question: str
    answer: str
    page: str
    places: tuple[int, ...]
    documents: int
    replies: Mapping[str, tuple[Reply, ...]]

    def answers(self, label: str) -> int:
        """How many different answers there were to the orders."""
        return len({" ".join(reply.text.split()) for reply in self.replies[label]})

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "question": self.question,
            "answer": self.answer,
            "page": self.page,
            "documents": self.documents,
            "orders": list(ORDERS),
            "places": list(self.places),
            "replies": {
                label: [asdict(reply) for reply in replies]
                for label, replies in self.replies.items()
            },
            "different_answers": {label: self.answers(label) for label in self.replies},
        }


def answered_examples(
    model: RagMiddleModel,
    items: Sequence[Item],
    methods: Sequence[LabelledMethod],
    template: PromptTemplate,
    **options: Any,
) -> tuple[Example, ...]:
    """Ask each question under each method with its documents in each of `ORDERS`.

    Args:
        model: that answers.
        items: the questions, their documents as they were found.
        methods: what to answer under.
        template: how prompts are written.
        options: of ``RagMiddleModel.batch``.
    """
    orders = [_orders(item) for item in items]
    prompts = [
        template.prompt(item.question, documents)
        for item, arranged in zip(items, orders, strict=True)
        for documents in arranged
    ]
    texts = {
        each.label: [
            answer.text.strip() for answer in model.batch(prompts, method=each.method, **options)
        ]
        for each in methods
    }
    return tuple(
        Example(
            question=item.question,
            answer=item.answers[0],
            page=item.details["title"],
            places=tuple(documents.index(item.gold) for documents in orders[at]),
            documents=len(item.documents),
            replies={
                label: tuple(
                    Reply(
                        text=text,
                        right=bool(answer_stated(text, item.answers)),
                        cited=cites(text, item.details["title"]),
                    )
                    for text in given[at * len(ORDERS) : (at + 1) * len(ORDERS)]
                )
                for label, given in texts.items()
            },
        )
        for at, item in enumerate(items)
        if item.gold is not None
    )


def _orders(item: Item) -> list[list[Document]]:
    found = list(item.documents)
    rng = random.Random(item.id)
    return [found, found[::-1], *(rng.sample(found, len(found)) for _ in ORDERS[2:])]
