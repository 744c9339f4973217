"""Which questions are asked, and with which pages."""

from __future__ import annotations

import pytest

from rag_middle.answering import DEFAULT_TEMPLATE
from rag_middle.demo.questions import CITED, CorpusTask, retrieved_questions
from rag_middle.evaluation import position
from rag_middle.reader.corpus import CorpusQuestion
from rag_middle.retrieval import Chunk


class RankedIndex:
    """Finds the same pages for every question, in a fixed order."""

    def __init__(self, *pages: tuple[str, str]) -> None:
        self._hits = [
            (Chunk(id=source, text=text, source=source, title=source.removesuffix(".md")), 1 / rank)
            for rank, (source, text) in enumerate(pages, start=1)
        ]

    def search_many(self, queries: list[str], k: int) -> list[list[tuple[Chunk, float]]]:
        return [self._hits[:k] for _ in queries]


INDEX = RankedIndex(
    ("pear.md", "The pear takes 3 days."),
    ("fig.md", "The fig takes 2 days."),
    ("plum.md", "The plum takes 2 days."),
    ("lime.md", "The lime takes 12 days."),
    ("date.md", "The date takes 5 days."),
    ("kiwi.md", "The kiwi takes 6 days."),
)


def question(page: str, value: str, attribute: str = "days") -> CorpusQuestion:
    return CorpusQuestion(
        question=f"How long does the {page} take?",
        answers=(value,),
        title=page,
        source=f"{page}.md",
        attribute=attribute,
    )


def test_the_page_keeps_its_rank_among_others_that_do_not_state_the_answer() -> None:
    [item], _ = retrieved_questions(INDEX, [question("plum", "2 days")], documents=3, count=5)
    # fig.md states "2 days" too; lime.md, with its 12 days, does not.
    assert [document.title for document in item.documents] == ["pear", "plum", "lime"]
    assert item.gold is not None
    assert item.gold.title == "plum"


def test_questions_whose_page_is_not_found_are_left_out_and_counted() -> None:
    questions = [question("kiwi", "6 days"), question("fig", "2 days"), question("gone", "1 day")]
    items, missed = retrieved_questions(INDEX, questions, documents=3, count=2)
    assert [item.question for item in items] == ["How long does the fig take?"]
    assert [skipped.title for skipped in missed] == ["kiwi", "gone"]


def test_no_more_questions_are_looked_at_than_needed() -> None:
    questions = [question("pear", "3 days"), question("fig", "2 days"), question("gone", "1 day")]
    items, missed = retrieved_questions(INDEX, questions, documents=3, count=2)
    assert len(items) == 2
    assert missed == []


def test_two_questions_of_one_page_have_different_ids() -> None:
    questions = [question("fig", "2 days"), question("fig", "2 days", attribute="other")]
    items, _ = retrieved_questions(INDEX, questions, documents=3, count=2)
    assert len({item.id for item in items}) == 2


@pytest.fixture
def task() -> CorpusTask:
    items, _ = retrieved_questions(INDEX, [question("plum", "2 days")], documents=4, count=5)
    return CorpusTask(questions=tuple(items), documents=4, template=DEFAULT_TEMPLATE)


def test_the_answering_page_moves_and_the_others_keep_their_order(task: CorpusTask) -> None:
    [item] = task.items(1, 0)
    for index in range(4):
        documents = task.prompt(item, position(index)).documents
        expected = ["pear", "lime", "date"]
        expected.insert(index, "plum")
        assert [document.text.split("\n")[0] for document in documents] == expected


@pytest.mark.parametrize(
    ("answer", "right", "cited"),
    [
        ("(plum) 2 days", 1, 1),
        ("It takes 2 days.", 1, 0),
        ("(fig) 2 days", 1, 0),
        ("(plum) 12 days", 0, 1),
        ("", 0, 0),
    ],
)
def test_value_and_page_are_judged_apart(
    task: CorpusTask, answer: str, right: float, cited: float
) -> None:
    [item] = task.items(1, 0)
    expected = {"answer_stated": right, CITED: cited}
    assert task.scores(item, position(0), answer) == expected
