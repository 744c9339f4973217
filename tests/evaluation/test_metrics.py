"""Scores of answers."""

import pytest

from rag_middle.evaluation.metrics import (
    answer_stated,
    as_compared,
    best_subspan_em,
    f1,
    normalized,
)


def test_normalisation_drops_case_punctuation_articles_and_spaces() -> None:
    assert normalized("  The  Rhône, and\tan  Otter's tail! ") == "rhône and otters tail"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("L\u2019Aquila", "It is L'Aquila."),
        ("St. John's", "In St. John\u2019s"),
        ("\u201cHamlet\u201d", 'The play is "Hamlet".'),
        ("\u00abLe Monde\u00bb", "Le Monde"),
        ("1990\u20131995", "From 1990-1995."),
        ("Jean-Paul", "Jean\u2011Paul Sartre"),
    ],
)
def test_quotes_and_dashes_of_printers_are_punctuation(answer: str, said: str) -> None:
    assert best_subspan_em(said, [answer]) == 1


def test_an_answer_inside_a_sentence_counts() -> None:
    assert best_subspan_em("It was Wilhelm Conrad Röntgen, in 1901.", ["Marie", "Conrad Röntgen"])
    assert not best_subspan_em("Nobody knows.", ["Röntgen"])


@pytest.mark.parametrize("answer", ["The", "A", "...", "?", "the an"])
def test_an_answer_of_articles_or_punctuation_matches_itself_alone(answer: str) -> None:
    for score in (answer_stated, best_subspan_em, f1):
        assert score(answer, [answer]) == 1
        assert score(f" {answer}\n", [answer]) == 1
        for other in ("", " ", "an", ".", "Answers are Averse.", "Paris"):
            assert score(other, [answer]) == 0, (score.__name__, other)
    assert best_subspan_em(f"Answer: {answer}", [answer]) == 1


@pytest.mark.parametrize(
    "said", ["A.", "The answer is A.", "**A**", "(A) Paris", "Answer: A, because"]
)
def test_the_letter_a_is_found_as_a_word_in_its_case(said: str) -> None:
    assert best_subspan_em(said, ["A"]) == 1
    assert best_subspan_em(said.lower(), ["A"]) == 0


def test_f1_is_the_best_over_the_answers() -> None:
    assert f1("Conrad Röntgen", ["Wilhelm Conrad Röntgen"]) == pytest.approx(0.8)
    assert f1("Conrad Röntgen", ["Loire", "Conrad Röntgen"]) == 1
    assert f1("Loire", ["Rhône"]) == 0
    assert f1("", ["Rhône"]) == 0
    assert f1("anything", []) == 0


@pytest.mark.parametrize(
    ("said", "answer", "stated"),
    [
        ("答案是JR東京駅です。", "東京", True),
        ("10^23", "10", False),
        ("(Trotrave Act) 2 days", "2 days", True),
        ("12 days", "2 days", False),
        ("2 days-long", "2 days", False),
        ("call 725-5315, please", "725-5315", True),
        ("4.5", "5", False),
        ("ナントはロワール川にあります", "ロワール川", True),
        ("เมืองน็องต์ตั้งอยู่ริมแม่น้ำลัวร์ครับ", "แม่น้ำลัวร์", True),
        *((f"the answer is {a}.", a, True) for a in ("-5", "+1", "C++", "C#", ".NET", "3.5", "A+")),
        ("x = \u22125", "-5", True),
        ("the answer--5", "5", True),
        *((said, "5", False) for said in ("-5", "x=-5", "\u22125", ".5", "5+", "-5.")),
        *((said, "-5", False) for said in ("15", "-55", "3-5", "5", "-5.5")),
        *((said, "C", False) for said in ("C++", "C#", "C++11")),
        # Combining signs belong to their word.
        *((said, "राम", True) for said in ("श्री राम", "उत्तर: राम।")),
        ("x\u0302y", "y", False),
        ("รที่", "รท", False),
        ("5\ufe0f\u20e3", "5", True),  # a picture of 5
        # Groups of three digits are one number; so are both sides of a slash.
        *((f"{n} people", "500", False) for n in ("12\u202f500", "12\u2009500", "12\xa0500")),
        *(
            (f"{n} people", answer, True)
            for n in ("12\u202f500", "12\xa0500", "12 500", "12'500", "12,500", "12500")
            for answer in ("12 500", "12,500", "12500")
        ),
        *((said, "12500", False) for said in ("12,50", "12.500", "112,500", "12,5000", "12, 500")),
        *((f"3{end}250 is wrong", n, True) for end in ("\n", "\n\n", "\r\n") for n in ("3", "250")),
        *((said, "2", False) for said in ("1/2 cup", "2/3", "1\u20442")),
        ("Nantes/Lyon/Paris", "Lyon", True),
        # Emphasis of Markdown is no part of a name.
        *((said, "Lyon", True) for said in ("_Lyon_", "__Lyon__", "It is ___Lyon___.", "**Lyon**")),
        *((said, "Lyon", False) for said in ("my_Lyon_x", "_Lyons_")),
        ("O'Brien", "O\u2019Brien", True),
        ("\uff11\uff12 \uff2cyon", "12 Lyon", True),
        # Punctuation without a space is no part of a word, but in numbers and names.
        *((said, "42", True) for said in ("Answer:42", "42,of course", "No.42", "is 42.It is")),
        *((said, "Lyon", True) for said in ("Answer:Lyon", "Lyon,France", "It is Lyon.It lies")),
        *((said, "12", False) for said in ("12,500", "12:30", "12.5", "7:12", "2.12")),
        # Dots before a word are no part of it, but for one: .5, .NET.
        *(
            (said, "Paris", True)
            for said in ("So ...Paris", "\u2026Paris", "[...Paris]", "..Paris")
        ),
        ('"Paris"\'s', "Paris", True),
        *((said, "باريس", True) for said in ("باريس،", "باريس؟")),
    ],
)
def test_a_name_or_number_is_stated_as_a_whole_or_not_at_all(
    said: str, answer: str, stated: bool
) -> None:
    assert answer_stated(said, ["nothing that is there", answer]) == stated


@pytest.mark.parametrize(
    "same",
    [
        *(["Lyon", said] for said in ("Lyon.", "lyon", "the Lyon", " The  LYON!\n", "**Lyon**")),
        *(["Lyon", said] for said in ('"Lyon"', "_Lyon_", "\u201cLyon\u201d.", "(Lyon)", "- Lyon")),
        ["Lyon, France", "Lyon,France.", "lyon France"],
        ["里昂", "里昂。"],
        ["4.5", "4.5.", "(4.5)", "\uff14.\uff15"],
        ["-5", "\u22125", "'-5'."],
        ["The", "the"],
        ["...", "..."],
    ],
)
def test_answers_that_say_the_same_are_the_same(same: list[str]) -> None:
    assert len({as_compared(text) for text in same}) == 1


def test_answers_that_say_something_else_are_others() -> None:
    for different in (
        ["4.5", "45", "-4.5", ".45", "4/5", "4:5", "4,5", "5"],
        ["-5", "5", ".5", "+5", "$5", "5%"],
        ["C++", "C", "C#", "C+"],
        ["1/2", "12", "1-2"],
        ["A", "The", "an", "..."],
        [".NET", "NET"],
        ["Lyon", "Lyons", "not Lyon"],
        ["node.js", "node js", "nodejs"],
    ):
        assert len({as_compared(text) for text in different}) == len(different), different
