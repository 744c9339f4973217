"""Facts, the documents that state them, and questions about them."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rag_middle.errors import EvaluationConfigError
from rag_middle.reader.kinds import KINDS, Attribute, Kind
from rag_middle.reader.names import Split, ending_of, name_word

__all__ = ["Entry", "Fact", "draw_entries", "draw_title"]

_TRIES = 1000  # where one draw in twenty is new, all of them fail once in 10^22 times


@dataclass(frozen=True)
class Fact:
    """One value of one attribute of one named thing."""

    title: str
    attribute: Attribute
    value: str

    @property
    def answer(self) -> str:
        """What a reader should say: the document it is from, then the value."""
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
        kind: what it is.
        facts: what the document states.
        body: the facts, a sentence each; every sentence names the thing.
    """

    title: str
    kind: Kind
    facts: tuple[Fact, ...]
    body: str

    @property
    def text(self) -> str:
        """The document as the reader likes it best: the title in parentheses, then the facts."""
        return f"({self.title}) {self.body}"


def draw_entries(
    rng: random.Random,
    split: Split,
    count: int,
    *,
    facts_each: Collection[int] = (1,),
    same_attribute: bool = True,
    kind: Kind | None = None,
    related_names: float = 0.1,
    namesakes: int = 0,
) -> list[Entry]:
    """Draw documents with different titles.

    Args:
        facts_each: how many facts a document may state; one of these is drawn for each.
        same_attribute: let all documents be of one kind and state one attribute in common, so that
            only the name tells which of them answers a question.
        kind: of what the documents are; drawn if None.
        related_names: how often a title takes the first word of an earlier title. Last words are
            not shared, nor their endings as long as there are others, so that they tell the
            documents of a prompt apart.
        namesakes: titles after the first that end in its last word all the same.

    Raises:
        EvaluationConfigError: `count`, or `namesakes`, is more than there are names for.
    """
    common = kind or rng.choice(KINDS)
    shared = rng.choice(common.attributes)
    titles: list[str] = []
    entries = []
    for _ in range(count):
        own = common if same_attribute or kind else rng.choice(KINDS)
        if 0 < len(titles) <= namesakes:
            title = _namesake(rng, split, titles)
        else:
            title = draw_title(rng, split, own, titles, related_names)
        titles.append(title)
        wanted = min(rng.choice(tuple(facts_each)), len(own.attributes))
        others = [a for a in own.attributes if a is not shared or not same_attribute]
        chosen = [shared] if same_attribute else []
        chosen += rng.sample(others, min(wanted - len(chosen), len(others)))
        rng.shuffle(chosen)
        facts = tuple(Fact(title, a, a.value(rng, split)) for a in chosen)
        body = " ".join(fact.sentence(rng) for fact in facts)
        entries.append(Entry(title, own, facts, body))
    return entries


def draw_title(
    rng: random.Random,
    split: Split,
    kind: Kind,
    taken: Collection[str],
    related_names: float = 0.0,
) -> str:
    """A name for a thing of `kind` that ends in another word than those `taken`.

    Args:
        related_names: how often it takes the first word of one of them.

    Raises:
        EvaluationConfigError: there are no more such names.
    """
    lasts = {other.split(" ", 1)[1] for other in taken}
    endings = {ending_of(last) for last in lasts}
    for attempt in range(_TRIES):
        first, last = kind.title(rng, split).split(" ", 1)
        if taken and rng.random() < related_names:
            first = rng.choice(tuple(taken)).split(" ", 1)[0]
        # There are fewer endings than words: the last tries make do with another word.
        if last not in lasts and (ending_of(last) not in endings or attempt >= _TRIES // 2):
            return f"{first} {last}"
    raise _names_run_out(f"a title of another last word than {len(taken)} others", split)


def _namesake(rng: random.Random, split: Split, taken: Sequence[str]) -> str:
    """A title that ends in the word of the first one."""
    last = taken[0].split(" ", 1)[1]
    for _ in range(_TRIES):
        title = f"{name_word(rng, split)} {last}"
        if title not in taken:
            return title
    raise _names_run_out(f"another title that ends in {last}", split)


def _names_run_out(what: str, split: Split) -> EvaluationConfigError:
    return EvaluationConfigError(
        f"{_TRIES} draws from the names of {split!r} did not give {what}: ask for fewer documents "
        "or namesakes."
    )
