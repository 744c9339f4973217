"""Chains of two or three documents about things that do not exist: no model can know an answer.

A document names a person: "The mayor of Harvale Milcombe is Carlshaw Linford." So a question may
ask for "the phone number of the mayor of Harvale Milcombe", which another document has. The third
step goes from the person to another thing that names it.
"""

from __future__ import annotations

import random

from rag_middle.documents import Document
from rag_middle.errors import ConfigError
from rag_middle.evaluation.conditions import Item

HOPS = (2, 3)
"""Documents that a question may need."""

_STEMS = (
    "Ald Ash Bar Beck Birk Brad Brook Burn Carl Chal Clay Cor Cran Dal Dun El Fal Fern Gil Glen "
    "Gran Hal Har Haw Hol Kel Kirk Lang Lin Lock Mar Mel Mil Nor Oak Pen Ray Ros Sel Shel Stan Sut "
    "Thorn Tor Wal Wes Whit Win Wood York"
).split()
_ENDINGS = (
    "bourne bury by combe cote dale den field ford gate ham hurst ington ley mere minster mouth "
    "over port ridge sea shaw stead stow thorpe ton vale ward wick worth"
).split()
_LINKS = {"town": "mayor", "company": "founder", "event": "host", "policy": "author"}
_FACTS = {
    "person": ("phone number", "staff number"),
    "town": ("postal code", "population"),
    "company": ("tax number", "account number"),
    "event": ("booking number", "number of guests"),
    "policy": ("form number", "number of signatories"),
}


def chain_question(index: int, rng: random.Random, documents: int, hops: int) -> Item:
    """A question over a chain, with documents of other chains of the same relations, mixed.

    Its details: ``last_question`` names the thing of the last document, so that this one is enough;
    ``first_value`` is the person that the first document names.

    Args:
        documents: in a prompt, the gold ones included.
        hops: how many of them are needed: 2 or 3.

    Raises:
        ConfigError: more documents than there are names for.
    """
    first, last = rng.sample(list(_LINKS), 2)
    fact = rng.choice(_FACTS["person" if hops == 2 else last])
    count = -(-documents // hops)
    words = [stem + ending for stem in _STEMS for ending in _ENDINGS]
    if hops * count > len(words):
        raise ConfigError(f"There are no names for {documents} documents: ask for fewer.")
    # No two things share the last word of their names, nor two chains their value.
    names = iter([f"{rng.choice(words)} {word}" for word in rng.sample(words, hops * count)])
    values = iter(rng.sample(range(10_000, 100_000), count))
    chains = []
    for _ in range(count):
        start, person = next(names), next(names)
        steps = [(_LINKS[first], start, person)]
        if hops == 3:
            steps.append((_LINKS[last], next(names), person))
        end = steps[-1][1] if hops == 3 else person
        chains.append([*steps, (fact, end, str(next(values)))])
    golds, *rest = chains
    _, start, person = golds[0]
    _, end, answer = golds[-1]
    asked = f"the {_LINKS[first]} of {start}"
    if hops == 3:
        asked = f"the {last} whose {_LINKS[last]} is {asked}"
    others = [_document(*step) for steps in rest for step in steps][: documents - hops]
    rng.shuffle(others)
    return Item(
        id=f"{index}",
        question=f"What is the {fact} of {asked}?",
        answers=(answer,),
        golds=tuple(_document(*step) for step in golds),
        others=tuple(others),
        details={"last_question": f"What is the {fact} of {end}?", "first_value": person},
    )


def _document(attribute: str, name: str, value: str) -> Document:
    return Document(f"The {attribute} of {name} is {value}.", id=f"{name}: {attribute}")
