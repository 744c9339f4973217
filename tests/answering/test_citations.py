"""Which titles an answer names."""

from __future__ import annotations

import pytest

from rag_middle.answering.results import cites


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ("(Jozos Grewo) 725-5315", "Jozos Grewo"),
        ("Jozos Grewo: 725-5315", "Jozos Grewo"),
        ("Two towns.\nlyon: on the Rhône", "Lyon"),
        ("On the Rhône (lyon).", "Lyon"),
        ("On two rivers (Lyon; Saône  valley).", "Saône valley"),
        ("It is so (Lyon (city)).", "Lyon (city)"),
        ("It is so (Smile :)).", "Smile :)"),
    ],
)
def test_titles_in_parentheses_or_before_a_colon_are_cited(answer: str, title: str) -> None:
    assert cites(answer, title)


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ("Lyon lies on the Rhône.", "Lyon"),
        ("On the Rhône (in Lyon, France).", "Lyon"),
        ("On the Rhône (Lyons).", "Lyon"),
        ("There is Lyon: a town.", "Lyon"),
        ("Nothing ().", ""),
        (": nothing", ""),
        ("Nothing (None).", None),
    ],
)
def test_nothing_else_is(answer: str, title: str | None) -> None:
    assert not cites(answer, title)
