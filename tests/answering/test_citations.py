"""Which titles an answer names."""

import pytest

from rag_middle.answering.results import mentions


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ("(Jozos Grewo) 725-5315", "Jozos Grewo"),
        ("Two towns.\nlyon: on the Rhône", "Lyon"),
        ("On the Rhône (lyon).", "Lyon"),
        ("On two rivers (Lyon; Saône  valley).", "Saône valley"),
        ("It is so (Lyon (city)).", "Lyon (city)"),
        *(("(Mercury (planet); Venus) Both.", title) for title in ("Mercury (planet)", "Venus")),
        *(("(Venus; Mercury (element))", title) for title in ("Venus", "Mercury (element)")),
        ("(see (Lyon; Nantes))", "Nantes"),
        ("（长江）它是最长的河。", "长江"),
        ("长江：最长的河。", "长江"),
        ("(River (long)) It is.", "River （long）"),
        *((f"It is so ({title}).", "Lyon") for title in ("**Lyon**", "*Lyon*", "`Lyon`", '"Lyon"')),
        *((f"({title}; Nantes)", "Lyon") for title in ("“Lyon”", "‘Lyon’", "_Lyon_", "“**Lyon**”")),
        *((f"{title} on the Rhône.", "Lyon") for title in ("**Lyon**:", "**Lyon:**", "_Lyon:_")),
        ("(Rho\u0302ne) It is.", "Rh\u00f4ne"),
        ("(RH\u00d4NE) It is.", "Rho\u0302ne"),
        ("(\u039f\u0394\u039f\u03a3) It is.", "\u03bf\u03b4\u03bf\u03c2"),
        ("(\u00ea\u0323)", "\u00ea\u0323"),  # two accents in an order of their own
        ("(\uc11c\uc6b8)", "\u1109\u1165\u110b\u116e\u11af"),
    ],
)
def test_titles_in_parentheses_or_before_a_colon_are_cited(answer: str, title: str) -> None:
    assert mentions(answer, title)


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ("Lyon lies on the Rhône.", "Lyon"),
        ("On the Rhône (in Lyon, France).", "Lyon"),
        ("On the Rhône (Lyons).", "Lyon"),
        ("There is Lyon: a town.", "Lyon"),
        ("Nothing ().", ""),
        ("(in (a; Lyon) Nantes)", "Nantes"),
        ("(a; Lyon (b)", "Lyon"),
        (": nothing", ""),
        ("Nothing (None).", None),
        ("There is **Lyon**: a town.", "Lyon"),
        *((answer, "Rho") for answer in ("(Rh\u00f4)", "(Rho\u0302)")),
        ("(\uac01)", "\uac00"),
    ],
)
def test_nothing_else_is(answer: str, title: str | None) -> None:
    assert not mentions(answer, title)


def test_mentions_say_where() -> None:
    answer = "LYON: on two rivers (Lyon; Saône  valley), see (Lyon)."
    places = mentions(answer, "Lyon")
    assert [answer[start:end] for start, end in places] == ["LYON", "Lyon", "Lyon"]
    assert [start for start, _ in places] == [0, 21, 48]
    [(start, end)] = mentions(answer, "saône valley")
    assert answer[start:end] == "Saône  valley"
    [(start, end)] = mentions("It (**Sao\u0302ne**) is.", "Sa\u00f4ne")
    assert (start, end) == (6, 12)


@pytest.mark.parametrize(
    "answer",
    ["\n" * 50_000 + "Lyon:", "(Lyon; Lyon) " * 20_000, "( " * 50_000 + "Lyon"],
    ids=("newlines", "groups", "spaces"),
)
@pytest.mark.timeout(10)  # quadratic work takes minutes
def test_work_grows_with_the_answer(answer: str) -> None:
    assert all(answer[start:end] == "Lyon" for start, end in mentions(answer, "Lyon"))
