"""Questions that need several documents, by the distance between them and by their order."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rag_middle.documents import ContextPrompt, Document
from rag_middle.errors import EvaluationConfigError, EvaluationDataError
from rag_middle.evaluation.conditions import Condition, Item
from rag_middle.evaluation.layouts import Layout, distance_row, gold_distances
from rag_middle.evaluation.tasks.base import (
    Task,
    drawn_items,
    question_prompt,
    require_one_of,
    require_whole,
)
from rag_middle.evaluation.tasks.data_files import (
    answers_of,
    as_document,
    first_of,
    flagged,
    get_field,
    read_lines,
    without_repeats,
)
from rag_middle.reader.chains import HOPS, draw_chains
from rag_middle.reader.names import SPLITS, Split
from rag_middle.wording import Argument, counted

__all__ = ["MultiHop"]

_DOCUMENTS = 10


@dataclass(frozen=True, kw_only=True)
class MultiHop(Task):
    """Questions with two gold documents or more, all of which are needed.

    The gold documents stand around the middle of the prompt, nearer to each other or further apart,
    in the order of the chain and reversed; the other documents keep their order. A line of `data`
    has ``question``, ``answers`` (or ``answer``), and its documents in one of two forms, the gold
    ones in the order of the chain in the first, in which they stand in the second::

        {"documents": ["...", ...], "gold": [3, 0]}
        {"documents": [{"text": "...", "gold": true}, ...]}

    Others that repeat a gold document are left out. Without `data`, documents about invented things
    are drawn, the others of chains of the same relations; then the last gold document's question is
    asked directly, too.

    Attributes:
        data: the file, plain or gzipped; None for invented documents.
        hops: gold documents of a question; lines of `data` with another number are left out. None
            for as many as the first line has, and then all must; 2 for invented documents.
        documents: in a prompt, the gold ones included; None for as many as the first line has, and
            10 for invented documents. Lines with more lose the last of the others.
        split: of invented documents: whose names to use.
        instruction: before the documents; None for none with invented documents, which the bundled
            reader expects, and a sentence with `data`.
    """

    name: ClassVar[str] = "multi_hop"
    version: ClassVar[int] = 6
    may_repeat: ClassVar[bool] = True
    title: ClassVar[str] = "Questions that need several documents"
    metrics: ClassVar[tuple[str, ...]] = ("answer_stated", "best_subspan_em", "f1")

    data: str | Path | None = None
    hops: int | None = None
    documents: int | None = None
    split: Split = "test"
    instruction: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of(self.name, SPLITS, split=self.split)
        for name in ("hops", "documents"):
            if getattr(self, name) is not None:
                require_whole(self.name, 2, **{name: getattr(self, name)})
        hops, documents = self.hops or HOPS[0], self.documents or _DOCUMENTS
        if self.data is None and hops not in HOPS:
            raise EvaluationConfigError(
                f"multi_hop: invented documents make questions over {HOPS[0]} or {HOPS[1]} of "
                f"them, got hops={hops}. Give data of your own for more, or use key_value_chains."
            )
        if self.data is not None:
            parsed = [(line, *_documents(line, content)) for line, content in read_lines(self.data)]
            first_of(read_lines, self.data)  # refuses a file without lines
            hops = self.hops or len(parsed[0][2])
            other = next((x for x in parsed if len(x[2]) != hops), None)
            if other and self.hops is None:
                raise EvaluationDataError(
                    f"{other[0]} has {len(other[2])} gold documents and the first line {hops}. Ask "
                    "only the questions with one of these numbers: ",
                    Argument("hops", hops),
                    ".",
                )
            first = next((x for x in parsed if len(x[2]) == hops), None)
            if first is None:
                raise EvaluationDataError(
                    f"{Path(self.data).name} has no question with {hops} gold documents. Leave ",
                    Argument("hops"),
                    " out to take the number that the first line has.",
                )
            documents = self.documents or len(first[1])
        object.__setattr__(self, "hops", hops)
        object.__setattr__(self, "documents", documents)
        self.layout(2)  # refuses too few documents

    @property
    def provenance(self) -> str:
        if self.data is not None:
            return Path(self.data).name
        return "generated by rag-middle; nothing in it exists"

    @property
    def num_positions(self) -> int:
        return 0

    @property
    def num_questions(self) -> int | None:
        return None if self.data is None else len(self._lines())

    @property
    def description(self) -> str:
        count = self.num_questions
        questions = "" if count is None else f": {counted(count, 'question')}"
        repeats = 0
        if self.data is not None:
            for _, line, content in self._lines():
                repeats += len(content["documents"]) - len(_documents(line, content)[0])
        note = f"; documents left out as repeats of a gold one: {repeats}"
        return (
            f"{self.title} ({self.provenance}){questions}, {self.hops} gold documents among "
            f"{self.documents}{note if repeats else ''}"
        )

    def layout(self, columns: int) -> Layout:
        assert self.documents is not None  # both are set when made
        assert self.hops is not None
        among, order = self.documents, range(self.hops)
        distances = gold_distances(among, self.hops, columns)
        rows = [
            distance_row("in the order of the chain", among, distances, order),
            distance_row("reversed", among, distances, order[::-1]),
        ]
        if self.data is None:
            rows.append(distance_row("last document asked directly", among, distances, order, 1))
        return Layout(
            "Order of the gold documents",
            "Distance between gold documents",
            tuple(rows),
        )

    def items(self, limit: int | None, seed: int) -> list[Item]:
        if self.data is not None:
            return [self._parsed(*line) for line in self._lines()[:limit]]
        return drawn_items(self, limit, seed, self._drawn)

    def _drawn(self, index: int, rng: random.Random) -> Item:
        assert self.documents is not None
        assert self.hops is not None
        case = draw_chains(rng, self.split, self.documents, self.hops)
        golds, others = (
            tuple(Document(entry.text, id=f"{entry.title}: {entry.facts[0].attribute.key}")
                  for entry in entries)
            for entries in (case.golds, case.others)
        )  # fmt: skip
        return Item(
            id=f"{index}",
            question=case.question,
            answers=(case.fact.value,),
            golds=golds,
            others=others,
            details={
                "last_question": case.last_question,
                "first_value": case.golds[0].facts[0].value,
            },
        )

    def _lines(self) -> list[tuple[int, str, dict[str, Any]]]:
        """Number, name for messages and content of the lines that are asked."""
        assert self.data is not None
        lines = [(index, *line) for index, line in enumerate(read_lines(self.data))]
        return [line for line in lines if len(_documents(*line[1:])[1]) == self.hops]

    def _parsed(self, index: int, line: str, content: dict[str, Any]) -> Item:
        assert self.documents is not None
        documents, golds = _documents(line, content)
        if len(documents) < self.documents:
            raise EvaluationDataError(
                f"{line} has {len(documents)} documents, and {self.documents} are asked for: give "
                "it more, or ask for ",
                Argument("documents", len(documents)),
                ".",
            )
        others = [d for index, d in enumerate(documents) if index not in golds]
        return Item(
            id=f"{index}",
            question=str(get_field(content, "question", str, line)),
            answers=answers_of(content, line),
            golds=tuple(documents[index] for index in golds),
            others=tuple(others[: self.documents - len(golds)]),
        )

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        instruction = self.instruction
        if instruction is None:
            instruction = "" if self.data is None else "Answer the question from the documents.\n\n"
        question = item.details["last_question"] if condition.hops == 1 else item.question
        return question_prompt(instruction, item, condition, question)


def _documents(line: str, content: dict[str, Any]) -> tuple[list[Document], list[int]]:
    """The documents of a line, the gold ones once, and their 0-based positions along the chain."""
    values = get_field(content, "documents", list, line)
    golds = content["gold"] if "gold" in content else flagged(values, "gold")
    if (
        not isinstance(golds, list)
        or any(isinstance(x, bool) or not isinstance(x, int) for x in golds)
        or len(set(golds)) != len(golds)
        or not all(0 <= index < len(values) for index in golds)
        or len(golds) < 2
    ):
        raise EvaluationDataError(
            f"{line} should name two gold documents or more: 'gold' with the different 0-based "
            f"positions of some of its {len(values)} documents in the order of the chain, such as "
            f'[3, 0], or "gold": true in each of them; got {golds!r}.'
        )
    return without_repeats([as_document(value, line) for value in values], golds)
