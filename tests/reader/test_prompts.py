"""Cases for measuring a reader."""

from __future__ import annotations

import pytest

from rag_middle.reader.prompts import draw_case, reads_like


@pytest.mark.parametrize("position", [0, 4, 9])
def test_the_gold_document_stands_where_it_is_asked_for(position):
    case = draw_case(5, "test", 10, position)
    holders = [i for i, d in enumerate(case.prompt.documents) if case.answer[:7] in d.text]
    assert holders == [position]
    assert case.value in case.prompt.documents[position].text


def test_positions_are_compared_on_the_same_question_and_documents():
    first, last = draw_case(5, "test", 10, 0), draw_case(5, "test", 10, 9)
    assert first.question == last.question
    assert set(first.prompt.documents) == set(last.prompt.documents)
    assert first.prompt.documents[1:] == last.prompt.documents[:-1]


def test_an_answer_is_title_and_value_and_nothing_else():
    assert reads_like("(Grewo Labs) Nisa", " (Grewo Labs)  Nisa\n")
    assert not reads_like("(Grewo Labs) Nisa", "(Grewo Labs) Nisa Nisa")
    assert not reads_like("(Grewo Labs) Nisa", "Nisa")
