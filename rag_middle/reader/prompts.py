"""Prompts for the reader, and whether an answer is right.

Every document of a prompt states the asked attribute, so that only the name tells which of them
answers. A reader that finds the attribute and picks a document at random is right once in ``D``.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rag_middle.documents import ContextPrompt, Document
from rag_middle.reader.facts import Entry, Fact, draw_entries
from rag_middle.reader.names import Split

__all__ = ["ReaderCase", "draw_case", "reader_prompt", "reads_like"]

ASKED = "Question: {question}\nAnswer:"


@dataclass(frozen=True)
class ReaderCase:
    """A prompt with one right answer.

    Attributes:
        prompt: the documents and the question.
        gold_position: 0-based.
        question: as in the prompt.
        answer: the title, a colon, then the value.
        value: the value alone.
        attribute: the kind of fact, such as ``person.phone_number``.
    """

    prompt: ContextPrompt
    gold_position: int
    question: str
    answer: str
    value: str
    attribute: str


def reader_prompt(documents: Sequence[Document | str], question: str) -> ContextPrompt:
    """The prompt that the reader was trained on."""
    return ContextPrompt(documents=documents, suffix=ASKED.format(question=question))


def draw_case(
    seed: int | str,
    split: Split,
    documents: int,
    gold_position: int,
    *,
    facts_each: Collection[int] = (1,),
    namesakes: int = 0,
) -> ReaderCase:
    """Draw a prompt with the answer at ``gold_position``.

    The same seed gives the same documents and question for every gold position, so that positions
    are compared on the same questions: the gold document is moved among the others. So many other
    titles as ``namesakes`` says end in the same word as the gold document's.
    """
    rng = random.Random(f"{split}:{documents}:{seed}")
    entries = draw_entries(rng, split, documents, facts_each=facts_each, namesakes=namesakes)
    gold = entries[0]
    fact = _shared_fact(entries)
    question = fact.question(rng)
    others = entries[1:]
    ordered = [*others[:gold_position], gold, *others[gold_position:]]
    return ReaderCase(
        prompt=reader_prompt([Document(entry.text, id=entry.title) for entry in ordered], question),
        gold_position=gold_position,
        question=question,
        answer=fact.answer,
        value=fact.value,
        attribute=fact.attribute.key,
    )


def reads_like(answer: str, text: str) -> bool:
    """Whether a generated text is the answer: title and value, and nothing else."""
    return " ".join(text.split()) == answer


def _shared_fact(entries: Sequence[Entry]) -> Fact:
    """The first document's fact of the attribute that all documents state."""
    keys = [{fact.attribute.key for fact in entry.facts} for entry in entries]
    shared = set.intersection(*keys)
    return next(fact for fact in entries[0].facts if fact.attribute.key in shared)
