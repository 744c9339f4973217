"""Questions that need two or three documents of the invented world.

Five attributes name a person: a mayor, a founder, a host, an approver, an author. So a question may
ask for something of "the mayor of X", whom another document is about. No attribute of a person
names a thing; the third step goes the other way, to the thing that names this person.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from rag_middle.reader.facts import Entry, Fact, draw_title
from rag_middle.reader.kinds import ATTRIBUTES, KINDS, Attribute, Kind
from rag_middle.reader.names import Split

__all__ = ["HOPS", "ChainCase", "draw_chains"]

HOPS = (2, 3)
"""Documents that a question may need."""

_PERSON = next(kind for kind in KINDS if kind.name == "person")
_LINKS = tuple(
    ATTRIBUTES[key]
    for key in ("town.mayor", "company.founder", "event.host", "policy.approver", "book.author")
)


@dataclass(frozen=True)
class ChainCase:
    """A question with the documents that it needs, and others like them.

    Attributes:
        golds: in the order in which one leads to the next.
        others: documents of other chains of the same relations, mixed.
        question: names the thing of the first document only.
        last_question: names the thing of the last document, so that this one is enough.
        fact: of the last document; its value is the answer.
    """

    golds: tuple[Entry, ...]
    others: tuple[Entry, ...]
    question: str
    last_question: str
    fact: Fact


def draw_chains(rng: random.Random, split: Split, documents: int, hops: int) -> ChainCase:
    """Draw chains of the same relations; the first one is asked about.

    Args:
        documents: in a prompt, the gold ones included.
        hops: how many of them are needed: 2 or 3.

    Raises:
        EvaluationConfigError: more documents than there are names for.
    """
    first, second = rng.sample(_LINKS, 2)
    last_kind = _PERSON if hops == 2 else _kind_of(second)
    last = rng.choice([a for a in last_kind.attributes if a is not second])
    taken: list[str] = []

    def name(kind: Kind) -> str:
        taken.append(draw_title(rng, split, kind, taken))
        return taken[-1]

    chains: list[list[Entry]] = []
    while sum(map(len, chains)) < documents:
        start, person = name(_kind_of(first)), name(_PERSON)
        entries = [_entry(rng, start, first, person)]
        ending = person
        if hops == 3:
            ending = name(last_kind)
            entries.append(_entry(rng, ending, second, person))
        value = last.value(rng, split)
        while chains and value == chains[0][-1].facts[0].value:  # only one document answers
            value = last.value(rng, split)
        entries.append(_entry(rng, ending, last, value))
        chains.append(entries)
    golds = chains[0]
    others = [entry for chain in chains[1:] for entry in chain][: documents - hops]
    rng.shuffle(others)
    described = f"the {_noun(first)} of {golds[0].title}"
    if hops == 3:
        described = f"the {last_kind.name} whose {_noun(second)} is {described}"
    fact = golds[-1].facts[0]
    asked = rng.choice(last.questions)
    return ChainCase(
        golds=tuple(golds),
        others=tuple(others),
        question=asked.format(name=described),
        last_question=asked.format(name=fact.title),
        fact=fact,
    )


def _entry(rng: random.Random, title: str, attribute: Attribute, value: str) -> Entry:
    fact = Fact(title, attribute, value)
    return Entry(title, _kind_of(attribute), (fact,), fact.sentence(rng))


def _kind_of(attribute: Attribute) -> Kind:
    return next(kind for kind in KINDS if attribute in kind.attributes)


def _noun(attribute: Attribute) -> str:
    return attribute.key.partition(".")[2].replace("_", " ")
