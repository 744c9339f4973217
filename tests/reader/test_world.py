"""The invented world: names that splits do not share, sentences a reader can learn from."""

from __future__ import annotations

import random
import re

import pytest

from rag_middle.errors import EvaluationConfigError
from rag_middle.reader import facts
from rag_middle.reader.corpus import demo_corpus
from rag_middle.reader.facts import draw_entries
from rag_middle.reader.kinds import ATTRIBUTES, KINDS, Kind
from rag_middle.reader.names import SPLITS, ending_of, name_word, split_of, words_of


def invented_words(split: str, seed: int) -> set[str]:
    """All capitalised words of many documents, less those that every split may use."""
    rng = random.Random(seed)
    entries = [
        entry
        for _ in range(200)
        for entry in draw_entries(rng, split, 5, facts_each=(1, 2), same_attribute=False)
    ]
    words = {word for entry in entries for word in entry.title.split()}
    words |= {w for e in entries for f in e.facts for w in re.findall(r"[A-Z][a-z]+", f.value)}
    return words


def test_splits_share_no_name():
    common = set("January February March April May June July August September October".split())
    common |= {"November", "December"}
    endings = {w for kind in KINDS for w in _endings(kind.name)}
    drawn = {split: invented_words(split, 7) - common - endings for split in SPLITS}
    for split, words in drawn.items():
        assert len(words) > 100
        for other, others in drawn.items():
            assert split == other or not words & others


def test_no_name_of_the_demo_corpus_can_be_drawn_for_training():
    entries, _ = demo_corpus()
    endings = {word for kind in KINDS for word in _endings(kind.name)}
    invented = {word for entry in entries for word in entry.title.split()} - endings
    assert {split_of(word) for word in invented} == {"demo"}


@pytest.mark.parametrize("split", SPLITS)
def test_a_drawn_word_belongs_to_its_split_in_any_spelling(split):
    word = name_word(random.Random(1), split)
    assert split_of(word) == split_of(word.upper()) == split


def test_at_least_twelve_kinds_of_facts_with_three_phrasings_each():
    assert len(ATTRIBUTES) >= 12
    for attribute in ATTRIBUTES.values():
        assert len(set(attribute.sentences)) >= 3
        assert len(set(attribute.questions)) >= 3


def test_sentences_name_their_subject_before_the_value_and_questions_name_it():
    for attribute in ATTRIBUTES.values():
        for sentence in attribute.sentences:
            assert 0 <= sentence.index("{name}") < sentence.index("{value}")
        assert all("{name}" in question for question in attribute.questions)


def test_documents_of_a_prompt_can_all_state_the_asked_attribute():
    entries = draw_entries(random.Random(3), "test", 12, facts_each=(1, 2))
    shared = set.intersection(*({f.attribute.key for f in entry.facts} for entry in entries))
    assert shared
    assert len({entry.title for entry in entries}) == 12


def test_the_last_word_of_a_title_tells_the_documents_of_a_prompt_apart():
    entries = draw_entries(random.Random(4), "test", 40, related_names=0.5)
    firsts, lasts = zip(*(entry.title.split() for entry in entries), strict=True)
    assert len(set(lasts)) == 40
    assert len(set(firsts)) < 30


def test_last_words_end_differently_as_long_as_there_are_endings():
    entries = draw_entries(random.Random(5), "test", 40)
    assert len({ending_of(entry.title) for entry in entries}) == 40
    many = draw_entries(random.Random(5), "test", 120)
    assert len({entry.title.split()[-1] for entry in many}) == 120


def test_words_are_made_of_a_stem_and_an_ending():
    assert ending_of("Harwick") == "wick"
    assert ending_of("Grewo") == "Grewo"
    assert sum(len(words_of(split)) for split in SPLITS) > 20_000
    assert all(word.istitle() and len(word) <= 10 for word in words_of("demo"))


def test_namesakes_share_the_last_word_of_the_first_title_alone():
    entries = draw_entries(random.Random(4), "test", 6, namesakes=2)
    last = [entry.title.split()[-1] for entry in entries]
    assert [word == last[0] for word in last] == [True, True, True, False, False, False]
    assert len({entry.title for entry in entries}) == 6


def test_names_that_run_out_are_told():
    few = Kind("few", lambda rng, split: f"Any {rng.choice('ABC')}", KINDS[0].attributes)
    entries = draw_entries(random.Random(1), "test", 3, kind=few)
    assert {entry.title for entry in entries} == {"Any A", "Any B", "Any C"}
    with pytest.raises(EvaluationConfigError, match="than 3 others: ask for fewer documents"):
        draw_entries(random.Random(1), "test", 4, kind=few)


def test_namesakes_that_run_out_are_told(monkeypatch):
    monkeypatch.setattr(facts, "name_word", lambda rng, split: rng.choice(("Grewo", "Tadmu")))
    assert len(draw_entries(random.Random(1), "test", 2, kind=KINDS[0], namesakes=1)) == 2
    with pytest.raises(EvaluationConfigError, match="another title that ends in"):
        draw_entries(random.Random(1), "test", 4, kind=KINDS[0], namesakes=3)


def _endings(kind: str) -> set[str]:
    """Second words that titles of a kind share, such as "Labs"."""
    rng = random.Random(0)
    chosen = next(k for k in KINDS if k.name == kind)
    seconds = [chosen.title(rng, "train").split()[-1] for _ in range(200)]
    return {word for word in seconds if seconds.count(word) > 10}
