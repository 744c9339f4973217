"""A few questions, answered from the same documents in several orders."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rag_middle.answering import PromptTemplate
from rag_middle.answering.results import cites
from rag_middle.evaluation import Item, LabelledMethod
from rag_middle.evaluation.metrics import answer_stated
from rag_middle.generation import RagMiddleModel

__all__ = ["ORDERS", "Example", "Reply", "answered_examples"]

ORDERS = ("as retrieved", "reversed", "shuffled", "shuffled again")
"""Orders of the documents; as retrieved: the best first."""


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
        positions: 0-based position of that page in each of `ORDERS`.
        documents: in the prompt.
        replies: by method label, one for each of `ORDERS`.
    """

    question: str
    answer: str
    page: str
    positions: tuple[int, ...]
    documents: int
    replies: Mapping[str, tuple[Reply, ...]]

    @property
    def is_answered(self) -> bool:
        """Whether some method answers right in some order."""
        return any(reply.right for replies in self.replies.values() for reply in replies)

    def different_answers(self, label: str) -> int:
        """Number of different answers to the orders."""
        return len({" ".join(reply.text.split()) for reply in self.replies[label]})

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            **asdict(self),
            "orders": ORDERS,
            "different_answers": {label: self.different_answers(label) for label in self.replies},
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
        items: the questions, their documents as retrieved.
        options: of ``RagMiddleModel.batch``.
    """
    orders = []
    for item in items:
        ranked, rng = list(item.documents), random.Random(item.id)
        shuffled = (rng.sample(ranked, len(ranked)) for _ in ORDERS[2:])
        orders.append([ranked, ranked[::-1], *shuffled])
    prompts = [
        template.prompt(item.question, documents)
        for item, item_orders in zip(items, orders, strict=True)
        for documents in item_orders
    ]
    replies: list[dict[str, tuple[Reply, ...]]] = [{} for _ in items]
    for method in methods:
        answers = iter(model.batch(prompts, method=method.method, **options))
        for item, item_replies in zip(items, replies, strict=True):
            texts = [next(answers).text.strip() for _ in ORDERS]
            item_replies[method.label] = tuple(
                Reply(
                    text=text,
                    right=bool(answer_stated(text, item.answers)),
                    cited=cites(text, item.details["title"]),
                )
                for text in texts
            )
    return tuple(
        Example(
            question=item.question,
            answer=item.answers[0],
            page=item.details["title"],
            positions=tuple(documents.index(item.gold) for documents in item_orders),
            documents=len(item.documents),
            replies=item_replies,
        )
        for item, item_orders, item_replies in zip(items, orders, replies, strict=True)
        if item.gold is not None
    )
