"""Questions with their documents in several orders."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rag_middle.answering import DEFAULT_TEMPLATE
from rag_middle.demo.examples import ORDERS, answered_examples
from rag_middle.documents import ContextPrompt, Document
from rag_middle.evaluation import Item, labelled_methods

ITEM = Item(
    id="1",
    question="How long?",
    answers=("2 days",),
    gold=Document("It takes 2 days.", title="Plum"),
    others=tuple(Document(f"It takes {days} weeks.", title=f"T{days}") for days in range(4)),
    gold_position=1,
    details={"title": "Plum", "attribute": "days"},
)


class FirstReader:
    """Reads the first document, unless it runs under a method."""

    def __init__(self) -> None:
        self.options: list[dict[str, Any]] = []

    def batch(self, prompts: list[ContextPrompt], *, method: Any, **options: Any) -> list[Any]:
        self.options.append(options)
        texts = [prompt.documents[0].text.replace("\n", ": ") for prompt in prompts]
        if method.name != "none":
            texts = [" (Plum) 2 days"] * len(prompts)
        return [SimpleNamespace(text=text) for text in texts]


def test_every_question_is_asked_in_every_order_under_every_method() -> None:
    model: Any = FirstReader()
    [example] = answered_examples(
        model, [ITEM], labelled_methods(["pine"]), DEFAULT_TEMPLATE, max_new_tokens=7
    )
    assert set(example.replies) == {"none", "pine"}
    assert [len(replies) for replies in example.replies.values()] == [len(ORDERS)] * 2
    assert model.options == [{"max_new_tokens": 7}] * 2

    assert example.positions[:2] == (1, 3)  # as retrieved, and reversed
    assert example.replies["none"][0].text == "T0: It takes 0 weeks."
    assert example.replies["none"][1].text == "T3: It takes 3 weeks."
    assert not any(reply.right for reply in example.replies["none"][:2])
    assert example.different_answers("none") > 1

    assert example.different_answers("pine") == 1
    assert all(reply.right and reply.cited for reply in example.replies["pine"])
    assert example.replies["pine"][0].text == "(Plum) 2 days"


def test_orders_are_the_same_every_time() -> None:
    model: Any = FirstReader()
    first, second = (
        answered_examples(model, [ITEM], labelled_methods([]), DEFAULT_TEMPLATE) for _ in range(2)
    )
    assert first == second
