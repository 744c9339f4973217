"""Documents beside the gold one, by kind."""

from __future__ import annotations

import random

import pytest

from rag_middle.errors import EvaluationConfigError
from rag_middle.evaluation import InventedDocuments
from rag_middle.reader.distractors import DISTRACTORS, Distractors, draw_documents
from rag_middle.reader.facts import Entry, draw_entries

SEEDS = range(30)


def drawn(seed: int, distractors: Distractors, facts: int = 1) -> list[Entry]:
    return draw_documents(random.Random(seed), "test", 6, distractors, facts=facts)


def asked(entry: Entry) -> set[str]:
    return {fact.attribute.key for fact in entry.facts}


def test_the_default_is_the_world_as_it_is() -> None:
    for seed in SEEDS:
        assert drawn(seed, "same_relation") == draw_entries(random.Random(seed), "test", 6)


def test_random_ones_speak_of_other_things() -> None:
    shared = [asked(other) & asked(gold) for gold, *rest in (drawn(s, "random") for s in SEEDS)
              for other in rest]  # fmt: skip
    assert sum(map(bool, shared)) < len(shared) / 4


@pytest.mark.parametrize("distractors", ["similar_names", "near_duplicates"])
def test_similar_names_end_alike(distractors: Distractors) -> None:
    for seed in SEEDS:
        entries = drawn(seed, distractors)
        assert len({entry.title for entry in entries}) == len(entries)
        assert len({entry.title.split(" ", 1)[1] for entry in entries}) == 1
        assert len(set.intersection(*map(asked, entries))) == 1


@pytest.mark.parametrize("facts", [1, 2])
def test_near_duplicates_differ_in_name_and_value_only(facts: int) -> None:
    for seed in SEEDS:
        gold, *others = drawn(seed, "near_duplicates", facts)
        for other in others:
            body = other.body.replace(other.title, gold.title)
            for own, fact in zip(other.facts, gold.facts, strict=True):
                assert own.value != fact.value
                body = body.replace(own.value, fact.value)
            assert body == gold.body


@pytest.mark.parametrize("facts", [1, 2])
def test_one_document_contradicts_the_gold_one(facts: int) -> None:
    for seed in SEEDS:
        gold, other, *rest = drawn(seed, "contradicting", facts)
        assert (other.title, asked(other)) == (gold.title, asked(gold))
        assert all(a.value != b.value for a, b in zip(gold.facts, other.facts, strict=True))
        assert gold.title not in {entry.title for entry in rest}


@pytest.mark.parametrize("distractors", DISTRACTORS)
def test_questions_are_about_the_gold_document(distractors: Distractors) -> None:
    task = InventedDocuments(documents=6, distractors=distractors, facts=2)
    for item in task.items(20, 0):
        assert item.gold is not None
        assert item.answers[0] in item.gold.text
        assert str(item.gold.id) in item.question
        assert len({document.id for document in item.documents}) == 6


def test_other_kinds_are_refused() -> None:
    with pytest.raises(EvaluationConfigError, match="distractors must be one of same_relation, ra"):
        InventedDocuments(distractors="hard")  # type: ignore[arg-type]
