"""The invented world: names, documents that state facts about them, and questions.

Every sentence of ``world.json`` names its subject one word before the value; a question names its
subject; names are two invented words, so that the last one tells them apart. A model of a million
parameters learns to find and copy under these rules, and takes far longer without them. A word is a
stem and an ending of English place and family names, such as "Har" and "wick"; by a hash of its
letters one in sixteen was held out of the reader's training, and these are used here.
"""

import hashlib
import json
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rag_middle.errors import ConfigError

WORLD: dict[str, Any] = json.loads(Path(__file__).with_name("world.json").read_text("utf-8"))
_ENDINGS = WORLD["endings"].split()
_LONGEST = 10  # letters
_TRIES = 1000  # where one draw in twenty is new, all of them fail once in 10^22 times
_RELATED_NAMES = 0.1


@dataclass(frozen=True)
class Attribute:
    """One kind of fact.

    Attributes:
        key: its name in records, such as ``person.phone``.
        form: of values: ``name``, ``code``, ``one of ...``, a range with a text around it, ...
        sentences: ways to state it; ``{name}`` comes before ``{value}`` in each.
        questions: ways to ask for it, each with ``{name}``.
    """

    key: str
    form: str | tuple[Any, ...]
    sentences: Sequence[str]
    questions: Sequence[str]

    def value(self, rng: random.Random) -> str:
        """Draw one."""
        match self.form:
            case (low, high, *text):
                return (text[0] if text else "{}").format(rng.randrange(low, high))
            case "name":
                return _name_word(rng)
            case "name name":
                return _title(rng)
            case "code":  # as on a form or a machine, such as "KT-4071"
                letters = "".join(rng.choices("ABCDEFGHJKLMNPRSTUVWXYZ", k=2))
                return f"{letters}-{rng.randrange(1000, 10000)}"
            case "date":
                return f"{rng.randrange(1, 29)} {rng.choice(WORLD['months'].split())}"
            case "phone":
                return f"{rng.randrange(200, 1000)}-{rng.randrange(1000, 10000)}"
        return rng.choice(str(self.form).removeprefix("one of ").split())


def _attribute(kind: str, noun: str, said: dict[str, Any]) -> Attribute:
    """With sentences and questions that every noun allows before its own."""
    stated = [f"The {noun} of {{name}} is {{value}}.", f"For {{name}}, {{value}} is the {noun}."]
    asked = [f"What is the {noun} of {{name}}?", f"Tell me the {noun} of {{name}}."]
    form = tuple(said["value"]) if isinstance(said["value"], list) else said["value"]
    return Attribute(
        key=f"{kind}.{noun.replace(' ', '_')}",
        form=form,
        sentences=stated + said["sentences"],
        questions=asked + said["questions"],
    )


#: Attributes of each kind of thing.
KINDS = tuple(
    tuple(_attribute(kind, noun, said) for noun, said in facts.items())
    for kind, facts in WORLD["kinds"].items()
)


@dataclass(frozen=True)
class Fact:
    """One value of one attribute of one named thing."""

    title: str
    attribute: Attribute
    value: str

    @property
    def answer(self) -> str:
        """What the reader says: the document it is from, then the value."""
        return f"{self.title}: {self.value}"

    def sentence(self, rng: random.Random) -> str:
        return rng.choice(self.attribute.sentences).format(name=self.title, value=self.value)

    def question(self, rng: random.Random) -> str:
        return rng.choice(self.attribute.questions).format(name=self.title)


@dataclass(frozen=True)
class Entry:
    """A document about one thing: its name, its facts, and a sentence for each."""

    title: str
    facts: tuple[Fact, ...]
    body: str

    @property
    def text(self) -> str:
        """The document as the reader knows it: the title in parentheses, then the facts."""
        return f"({self.title}) {self.body}"


def draw_entries(rng: random.Random, count: int, facts_each: int = 1) -> list[Entry]:
    """Draw documents of one kind that state one attribute in common.

    Only the name tells which of them answers a question. One title in ten takes the first word of
    an earlier one; last words are not shared, nor their endings as long as there are others.

    Raises:
        ConfigError: `count` is more than there are names for.
    """
    attributes = rng.choice(KINDS)
    shared = rng.choice(attributes)
    titles: list[str] = []
    entries = []
    for _ in range(count):
        title = _new_title(rng, titles)
        titles.append(title)
        wanted = min(rng.choice((facts_each,)), len(attributes))
        others = [attribute for attribute in attributes if attribute is not shared]
        chosen = [shared, *rng.sample(others, wanted - 1)]
        rng.shuffle(chosen)
        facts = tuple(Fact(title, attribute, attribute.value(rng)) for attribute in chosen)
        entries.append(Entry(title, facts, " ".join(fact.sentence(rng) for fact in facts)))
    return entries


def _new_title(rng: random.Random, taken: Collection[str]) -> str:
    """A name that ends in another word than those `taken`."""
    lasts = {other.split(" ", 1)[1] for other in taken}
    endings = {ending_of(last) for last in lasts}
    for attempt in range(_TRIES):
        first, last = _title(rng).split(" ", 1)
        if taken and rng.random() < _RELATED_NAMES:
            first = rng.choice(tuple(taken)).split(" ", 1)[0]
        # There are fewer endings than words: the last tries make do with another word.
        if last not in lasts and (ending_of(last) not in endings or attempt >= _TRIES // 2):
            return f"{first} {last}"
    raise ConfigError(f"There are no names for more than {len(taken)} documents.")


@cache
def ending_of(word: str) -> str:
    """The ending that a word of a name is made with; the word where it is made otherwise."""
    return max((ending for ending in _ENDINGS if word.endswith(ending)), key=len, default=word)


def _title(rng: random.Random) -> str:
    return f"{_name_word(rng)} {_name_word(rng)}"


def _name_word(rng: random.Random) -> str:
    return rng.choice(_words())


@cache
def _words() -> tuple[str, ...]:
    """The held-out words, in alphabetical order."""
    pairs = ((stem, ending) for stem in WORLD["stems"].split() for ending in _ENDINGS)
    words = {stem + ending for stem, ending in pairs if _reads_well(stem, ending)}
    hashed = ((word, hashlib.sha256(word.lower().encode()).digest()[0]) for word in words)
    return tuple(sorted(word for word, digest in hashed if digest % 16 == 1))


def _reads_well(stem: str, ending: str) -> bool:
    doubled = (
        stem[-1] == ending[0] or stem.lower().endswith(ending) or ending.startswith(stem.lower())
    )
    return not doubled and len(stem) + len(ending) <= _LONGEST
