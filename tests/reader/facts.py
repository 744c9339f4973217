"""Facts, the documents that state them, and questions about them."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

from rag_middle.errors import ConfigError
from tests.reader.kinds import KINDS, Attribute, Kind
from tests.reader.names import ending_of

__all__ = ["Entry", "Fact", "draw_entries"]

_TRIES = 1000  # where one draw in twenty is new, all of them fail once in 10^22 times
_RELATED_NAMES = 0.1


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
    """A document about one thing.

    Attributes:
        title: its name.
        facts: what the document states.
        body: the facts, a sentence each; every sentence names the thing.
    """

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
    kind = rng.choice(KINDS)
    shared = rng.choice(kind.attributes)
    titles: list[str] = []
    entries = []
    for _ in range(count):
        title = _draw_title(rng, kind, titles)
        titles.append(title)
        wanted = min(rng.choice((facts_each,)), len(kind.attributes))
        others = [a for a in kind.attributes if a is not shared]
        chosen = [shared, *rng.sample(others, wanted - 1)]
        rng.shuffle(chosen)
        facts = tuple(Fact(title, a, a.value(rng)) for a in chosen)
        entries.append(Entry(title, facts, " ".join(fact.sentence(rng) for fact in facts)))
    return entries


def _draw_title(rng: random.Random, kind: Kind, taken: Collection[str]) -> str:
    """A name that ends in another word than those `taken`."""
    lasts = {other.split(" ", 1)[1] for other in taken}
    endings = {ending_of(last) for last in lasts}
    for attempt in range(_TRIES):
        first, last = kind.title(rng).split(" ", 1)
        if taken and rng.random() < _RELATED_NAMES:
            first = rng.choice(tuple(taken)).split(" ", 1)[0]
        # There are fewer endings than words: the last tries make do with another word.
        if last not in lasts and (ending_of(last) not in endings or attempt >= _TRIES // 2):
            return f"{first} {last}"
    raise ConfigError(f"There are no names for more than {len(taken)} documents.")
