"""NoLiMa: needles whose questions share no words with them, between passages of a book."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar
from unicodedata import normalize

from rag_middle import ContextPrompt, Document
from rag_middle.evaluation import (
    METRICS,
    Condition,
    Item,
    Metric,
    Task,
    arranged_documents,
    as_answers,
    get_field,
    read_entries,
)

METRICS["answer_contained"] = Metric(
    name="answer_contained", title="Accuracy (answer contained as written)"
)

TEMPLATE = (
    "Below is a part of a book.\n\n{haystack}\n\nAnswer a question about it. The book may not "
    "state the answer in so many words: infer it where that is needed.\n\n"
    "Question: {question}\n\nGive the answer only, without reasons."
)


@dataclass(frozen=True, kw_only=True)
class NoLiMa(Task):
    """Questions of NoLiMa (arXiv:2502.05167): a needle set (``needlesets/*.json``) and a book.

    The needle is the gold document, a line of its own between passages of the book's first `words`
    words: position 0 is its depth 0 % and the last one 100 %; 26 documents have the benchmark's
    depths.

    Differs: lengths are counted in words and not in GPT-4o's tokens; a question has one ``{CHAR}``
    at all depths, drawn by question, and no distractor sentences.

    Where there is no ``task_template``, the prompt is in this package's words.

    Score: ``answer_contained``, the benchmark's ``contains``.

    Attributes:
        data: the needle set.
        book: a text file, such as one of ``haystack/rand_shuffle``.
        documents: in a prompt, the needle among them.
        words: of the book in a prompt.
    """

    name: ClassVar[str] = "nolima"
    version: ClassVar[int] = 2
    title: ClassVar[str] = "NoLiMa"
    metrics: ClassVar[tuple[str, ...]] = ("answer_contained",)
    max_new_tokens: ClassVar[int] = 192

    data: str | Path
    book: str | Path
    documents: int = 26
    words: int = 750

    @property
    def provenance(self) -> str:
        license_ = "Adobe Research License, non-commercial"
        return f"{Path(self.data).name}, in the format of adobe-research/NoLiMa ({license_})"

    @property
    def num_positions(self) -> int:
        return self.documents

    @cached_property
    def _all(self) -> list[Item]:
        words = Path(self.book).read_text("utf-8").split()[: self.words]
        cuts = [len(words) * at // (self.documents - 1) for at in range(self.documents)]
        book = [Document(" ".join(words[start:end])) for start, end in pairwise(cuts)]
        entries = read_entries(self.data)
        return [item for line, entry in entries for item in items_of(line, entry, book)]

    def items(self, limit: int | None, seed: int) -> list[Item]:
        return self._all[:limit]

    def scores(self, item: Item, condition: Condition, answer: str) -> dict[str, float]:
        # As ``evaluation/async_evaluate.py`` of adobe-research/NoLiMa; NFC and NFD are the same.
        text, *answers = (normalize("NFC", words) for words in (answer, *item.answers))
        return {"answer_contained": float(any(right in text for right in answers))}

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        before, after = item.details["template"].split("{haystack}")
        documents = arranged_documents(item, condition)
        return ContextPrompt(before, documents, after.replace("{question}", item.question), "\n")


def items_of(line: str, entry: dict[str, Any], book: list[Document]) -> list[Item]:
    """The questions of every test of a needle."""
    items = []
    for test, values in get_field(entry, "tests", dict, line).items():
        for kind, question in get_field(entry, "questions", dict, line).items():
            name = f"{entry.get('id', line)}_{test}_{kind}"
            filled = {f"{{{n}}}": value for n, value in enumerate(values["input_args"], start=1)}
            if "{CHAR}" in entry["needle"]:
                filled["{CHAR}"] = random.Random(name).choice(entry["character_set"])
            answers = values.get("gold_answers") or filled.get("{CHAR}")
            system = entry.get("system_prompt") or ""
            template = entry.get("task_template") or TEMPLATE
            items.append(
                Item(
                    id=name,
                    question=fill(question, filled),
                    answers=as_answers(answers, f"{line}: test {test!r}"),
                    gold=Document(fill(get_field(entry, "needle", str, line), filled)),
                    others=tuple(book),
                    details={"template": f"{system}\n\n{template}" if system else template},
                )
            )
    return items


def fill(text: str, values: dict[str, str]) -> str:
    """The text with its placeholders replaced."""
    for placeholder, value in values.items():
        text = text.replace(placeholder, value)
    return text
