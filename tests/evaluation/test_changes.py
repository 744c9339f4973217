"""Controls that change the prompt: repeated documents, filler, the question first."""

from __future__ import annotations

from rag_middle.documents import ContextPrompt, Document
from rag_middle.evaluation import (
    Item,
    Measurement,
    arranged_documents,
    position,
    run,
)
from rag_middle.generation import RagMiddleModel
from tests.evaluation.fake_models import FakeReader
from tests.reader.questions import InventedDocuments

TASK = InventedDocuments(documents=5)
CHANGES = ("repeated", "random_filler", "question_first")


def test_documents_are_repeated_or_their_words_shuffled() -> None:
    gold = Document("Nantes lies on the Loire.")
    others = (Document("Lyon lies on the Rhône.", title="Lyon", id="l"), Document("one two three"))
    item = Item(id="0", question="?", answers=("Loire",), gold=gold, others=others)
    plain = arranged_documents(item, position(1))
    assert arranged_documents(item, position(1, change="repeated")) == (*plain, *plain)
    assert arranged_documents(item, position(1, change="question_first")) == plain
    filler = arranged_documents(item, position(1, change="random_filler"))
    assert filler == arranged_documents(item, position(1, change="random_filler"))  # in any process
    assert filler[1] == gold
    assert filler[0].id == "l"
    for changed, document in zip((filler[0], filler[2]), others, strict=True):
        assert changed.text != document.render()
        assert sorted(changed.text.split()) == sorted(document.render().split())


class Listening(FakeReader):
    """Remembers its prompts."""

    heard: list[ContextPrompt]

    def _answer(self, prompt: ContextPrompt, method: str):  # type: ignore[no-untyped-def]
        self.heard.append(prompt)
        return super()._answer(prompt, method)


def test_the_unmodified_model_is_asked_at_the_same_positions(model: RagMiddleModel) -> None:
    fake = Listening(model, TASK.items(10, 0), lambda m, at, d: 0.3 if d == 10 else 0.9)
    fake.heard = []
    how = Measurement(limit=10, positions=3, changes=CHANGES)
    results = run(fake, TASK, ["pine"], how)
    assert len(fake.heard) == 10 * (3 * (1 + len(CHANGES)) + 1)  # PINE: once per question
    controls = {control.name: control for control in results.summary().controls}
    assert tuple(controls) == CHANGES
    assert controls["repeated"].difference.high < 0
    assert controls["question_first"].difference.exact
    assert controls["random_filler"].title == "the other documents' words shuffled"
    first = [p for p in fake.heard if p.prefix]
    assert len(first) == 10 * 3
    assert all(p.prefix.strip() in p.suffix for p in first)
