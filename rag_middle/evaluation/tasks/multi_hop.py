"""Questions that need several documents, by the distance between them and by their order."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from rag_middle.documents import ContextPrompt, Document
from rag_middle.errors import ConfigError, FileFormatError
from rag_middle.evaluation.conditions import (
    Condition,
    Item,
    Layout,
    chain,
    distinct_questions,
    spread_positions,
)
from rag_middle.evaluation.tasks.base import Task, drawn_items, question_prompt, require_whole
from rag_middle.evaluation.tasks.data_files import (
    answers_of,
    documents_of,
    get_field,
    read_entries,
)
from rag_middle.wording import counted

HOPS = (2, 3)  # documents that a question about invented things may need

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
_DOCUMENTS = 10


@dataclass(frozen=True, kw_only=True)
class MultiHop(Task):
    """Questions with two gold documents or more, all of which are needed.

    The gold documents stand around the middle of the prompt, nearer to each other or further apart,
    in the order of the chain and reversed; the other documents keep their order. A line of `data`
    has ``question``, ``answers`` (or ``answer``), and its documents in one of the first two forms
    of `documents_of`: positions are in the order of the chain, flagged documents stand in it.

    Without `data`, documents about invented things are drawn, the others of chains of the same
    relations; then the last gold document's question is asked directly, too.

    Attributes:
        data: the file, plain or gzipped; None for invented documents.
        hops: gold documents of a question; lines of `data` with another number are left out, and
            `provenance` says how many. None for as many as the first line has; 2 for invented
            documents.
        documents: in a prompt, the gold ones included; None for as many as the first line has, and
            10 for invented documents. Lines with more lose the last of the others.
        instruction: before the documents.
    """

    name: ClassVar[str] = "multi_hop"
    version: ClassVar[int] = 8
    title: ClassVar[str] = "Questions that need several documents"
    metrics: ClassVar[tuple[str, ...]] = ("answer_stated", "best_subspan_em", "f1")

    data: str | Path | None = None
    hops: int | None = None
    documents: int | None = None
    instruction: str = "Answer the question from the documents.\n\n"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("hops", "documents"):
            if (value := getattr(self, name)) is not None:
                require_whole(self.name, 2, **{name: value})
        hops, documents = self.hops or HOPS[0], self.documents or _DOCUMENTS
        if self.data is None and hops not in HOPS:
            raise ConfigError(
                f"multi_hop: invented documents make questions over {HOPS[0]} or {HOPS[1]} of "
                f"them, got hops={hops}. Give data of your own for more, or use key_value_chains."
            )
        if self.data is not None:
            hops = self.hops or len(next((golds for *_, golds in self._lines), ()))
            counts = [len(documents) for *_, documents, golds in self._lines if len(golds) == hops]
            if hops < 2 or not counts:
                raise FileFormatError(
                    f"{Path(self.data).name} has no question with {max(2, hops)} gold documents: "
                    "'gold' names them by 0-based positions, such as [3, 0]."
                )
            documents = self.documents or counts[0]
        object.__setattr__(self, "hops", hops)
        object.__setattr__(self, "documents", documents)
        self.layout(2)  # refuses too few documents

    @cached_property
    def _lines(self) -> list[tuple[int, str, dict[str, Any], list[Document], list[int]]]:
        """Number, name and fields of each line, its documents and the positions of gold ones."""
        entries = () if self.data is None else read_entries(self.data)
        return [
            (index, line, content, *documents_of(content, line))
            for index, (line, content) in enumerate(entries)
        ]

    @property
    def provenance(self) -> str:
        if self.data is None:
            return "generated by rag-middle; nothing in it exists"
        name = Path(self.data).name
        if left_out := sum(len(golds) != self.hops for *_, golds in self._lines):
            lines = counted(left_out, "line")
            return f"{name}, but for {lines} with another number of gold documents than {self.hops}"
        return name

    def layout(self, columns: int) -> Layout:
        """Gold documents further and further apart, always around the middle of the prompt.

        Around the middle, the mean of their positions is the same at every distance: what differs
        is how far apart they are, and at the largest distance that the outer ones stand at the
        ends.
        """
        among, golds = self.documents or _DOCUMENTS, self.hops or HOPS[0]
        most = (among - 1) // (golds - 1)
        if most < 2:
            raise ConfigError(
                f"Distances between {golds} gold documents among {among} cannot be compared: there "
                f"is room for one only. Use {2 * golds - 1} documents or more."
            )
        places = {}
        for distance in (index + 1 for index in spread_positions(most, columns)):
            start = (among - 1 - (golds - 1) * distance) // 2
            places[f"distance {distance}"] = [start + slot * distance for slot in range(golds)]
        ahead = {name: chain(at) for name, at in places.items()}
        reverse = {name: chain(at[::-1]) for name, at in places.items()}
        rows = {"in the order of the chain": ahead, "reversed": reverse}
        if self.data is None:
            rows["last document asked directly"] = {
                name: chain(at, 1) for name, at in places.items()
            }
        return Layout("Order of the gold documents", "Distance between gold documents", rows)

    def items(self, limit: int | None, seed: int) -> list[Item]:
        if self.data is None:
            return drawn_items(self, limit, seed, self._drawn)
        items = (self._item(*line) for line in self._lines if len(line[-1]) == self.hops)
        return list(islice(distinct_questions(items), limit))

    def _drawn(self, index: int, rng: random.Random) -> Item:
        return chain_question(index, rng, self.documents or _DOCUMENTS, self.hops or HOPS[0])

    def _item(
        self,
        index: int,
        line: str,
        content: dict[str, Any],
        documents: list[Document],
        golds: list[int],
    ) -> Item:
        asked_for = self.documents or _DOCUMENTS
        if (there := len(documents)) < asked_for:
            raise FileFormatError(
                f"{line} has {there} documents, and {asked_for} are asked for: give it more, or "
                f"ask for documents={there} (--documents {there})."
            )
        others = [document for at, document in enumerate(documents) if at not in golds]
        return Item(
            id=f"{index}",
            question=str(get_field(content, "question", str, line)),
            answers=answers_of(content, line),
            golds=tuple(documents[at] for at in golds),
            others=tuple(others[: asked_for - len(golds)]),
        )

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        question = item.details["last_question"] if condition.hops == 1 else item.question
        return question_prompt(self.instruction, item, condition, question)


def chain_question(index: int, rng: random.Random, documents: int, hops: int) -> Item:
    """A question over a chain of invented things, with documents of other chains, mixed.

    A document names a person: "The mayor of Harvale Milcombe is Carlshaw Linford." So a question
    may ask for "the phone number of the mayor of Harvale Milcombe", which another document has.
    The third step goes from the person to another thing that names it.

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
    others = [_statement(*step) for steps in rest for step in steps][: documents - hops]
    rng.shuffle(others)
    return Item(
        id=f"{index}",
        question=f"What is the {fact} of {asked}?",
        answers=(answer,),
        golds=tuple(_statement(*step) for step in golds),
        others=tuple(others),
        details={"last_question": f"What is the {fact} of {end}?", "first_value": person},
    )


def _statement(attribute: str, name: str, value: str) -> Document:
    return Document(f"The {attribute} of {name} is {value}.", id=f"{name}: {attribute}")
