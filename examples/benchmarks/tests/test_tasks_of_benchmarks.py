"""Files in the formats of published benchmarks; the content is invented."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from rag_middle_benchmarks.helmet import Helmet
from rag_middle_benchmarks.mrcr import Mrcr
from rag_middle_benchmarks.nolima import NoLiMa
from rag_middle_benchmarks.retrieved_qa import RetrievedQA

from rag_middle import retrieval
from rag_middle.errors import FileFormatError
from rag_middle.evaluation import AS_GIVEN, CLOSED_BOOK, TASKS, Task, position
from tests.retrieval.embedding import HashingEmbedder

FILES = Path(__file__).parent / "files"


def score(task: Task, answer: str) -> float:
    [first, *_] = task.items(None, 0)
    [value] = task.scores(first, AS_GIVEN, answer).values()
    return value


@pytest.mark.parametrize("kind", [Helmet, Mrcr, NoLiMa])
def test_a_task_can_be_registered_from_outside(
    kind: type[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TASKS, "_targets", TASKS._targets.copy())
    monkeypatch.setattr(TASKS, "_loaded", TASKS._loaded.copy())
    TASKS.register(kind.name, f"{kind.__module__}:{kind.__name__}")
    assert TASKS.get(kind.name) is kind


def test_helmet_asks_a_question_once_and_moves_its_passage() -> None:
    task = Helmet(data=FILES / "helmet_rag.jsonl")
    first, _ = task.items(None, 0)
    assert (first.question, task.num_positions) == ("On which river does Sarrowby lie?", 4)
    for at in range(4):
        documents = task.prompt(first, position(at)).documents
        assert [document.title for document in documents].index("Sarrowby") == at
    assert score(task, "The Ouzel.\nOr not.") == 1
    assert score(task, "Not known.\nThe Ouzel.") == 0


def test_pairs_of_helmet_are_documents_of_a_json_object() -> None:
    task = Helmet(data=FILES / "helmet_json_kv.jsonl", documents=5)
    first, *_ = task.items(None, 0)
    prompt = task.prompt(first, position(2))
    assert len(prompt.documents) == 5
    assert prompt.documents[2].text == f'"{first.question}": "{first.answers[0]}"'
    assert prompt.text.endswith(f'Key: "{first.question}"\nValue:')


def test_mrcr_keeps_the_conversation_and_needs_the_random_text() -> None:
    task = Mrcr(data=FILES / "mrcr_openai.jsonl")
    first, *_ = task.items(None, 0)
    text = task.prompt(first, AS_GIVEN).text
    assert "User: write a poem about mills\n\nAssistant: O mill, you turn and turn" in text
    assert text.endswith(f"User: {first.question}\n\nAssistant:")
    assert not task.num_positions
    assert score(task, first.answers[0]) == 1
    assert score(task, first.answers[0].removeprefix(first.details["start"])) == 0
    assert 0 < score(task, first.details["start"] + " O mill") < 1


def test_a_conversation_without_replies_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "[]", "answer": "a", "random_string_to_prepend": "a"}\n')
    with pytest.raises(FileFormatError, match=r"rows\.jsonl:1: 'prompt' should be requests"):
        Mrcr(data=path).items(None, 0)


def test_needles_of_nolima_stand_between_passages_of_a_book() -> None:
    book = FILES / "rand_book_1.txt"
    task = NoLiMa(data=FILES / "needle_set.json", book=book, documents=4, words=60)
    items = task.items(None, 0)
    assert len(items) == 5
    first, last = items[0], items[-1]
    documents = task.prompt(first, position(3)).documents
    assert (
        documents[3].text == f"Yesterday {first.answers[0]} moved in beside the Clockwork Museum."
    )
    passages = " ".join(document.text for document in documents[:3])
    assert passages == " ".join(book.read_text().split()[:60])
    assert first.question == "Who has been to Belvane?"
    assert last.answers == ("umbrella", "Umbrella")
    prompt = task.prompt(last, position(0))
    assert prompt.prefix == "You read carefully.\n\nBook:\n"
    assert prompt.suffix.endswith(f"Asked: {last.question}\nReply with one word.")
    assert score(task, f"It was {first.answers[0]}.") == 1


def test_documents_come_from_a_real_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = HashingEmbedder()
    monkeypatch.setattr(retrieval, "SentenceTransformerEmbedder", lambda name: embedder)
    pages = tmp_path / "pages"
    pages.mkdir()
    for name, text in (("n", "Nantes lies on the Loire."), ("l", "Lyon lies on the Rhône.")):
        (pages / f"{name}.txt").write_text(text, encoding="utf-8")
    retrieval.build_index(pages, tmp_path / "index", embedder=embedder)
    data = tmp_path / "q.jsonl"
    data.write_text('{"question": "Lyon lies on the", "answer": "Rhône"}', encoding="utf-8")
    ways: tuple[tuple[Literal["first", "last"], int], ...] = (("first", 1), ("last", -1))
    for best, order_of_texts in ways:
        task = RetrievedQA(data=data, index=tmp_path / "index", documents=2, best=best)
        [item] = task.items(None, 0)
        retrieved = retrieval.Retriever(
            index=retrieval.FaissIndex.load(tmp_path / "index", embedder), top_k=2
        )("Lyon lies on the")
        assert list(item.documents) == retrieved[::order_of_texts]
        assert item.gold is None
        assert "Lyon" in retrieved[0].text
        assert task.prompt(item, AS_GIVEN).documents == item.documents
        assert task.prompt(item, CLOSED_BOOK).documents == ()
