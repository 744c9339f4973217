"""HELMET: retrieved passages, and keys of a JSON object."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from rag_middle import ContextPrompt, Document
from rag_middle.evaluation import (
    Condition,
    Item,
    Task,
    arranged_documents,
    as_answers,
    get_field,
    read_entries,
)

PAIR = re.compile(r'"((?:[^"\\]|\\.)*)": "((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, kw_only=True)
class Helmet(Task):
    """Questions of HELMET (arXiv:2410.02694), from its data files of retrieval and of keys.

    The gold passage is the one whose text is ``gold_doc``, or else the only one with
    ``has_answer``; that of a key is its pair. The files repeat a question with its gold document at
    several depths: it is asked once, and its document moved.

    Differs: prompts are in this package's words and without HELMET's two demonstrations.

    Score: ``best_subspan_em`` of the first line, HELMET's ``substring_exact_match``.

    Attributes:
        data: a file of JSON lines, plain or gzipped.
        documents: how many are in a prompt.
    """

    name: ClassVar[str] = "helmet"
    version: ClassVar[int] = 3
    title: ClassVar[str] = "HELMET"
    metrics: ClassVar[tuple[str, ...]] = ("best_subspan_em",)
    max_new_tokens: ClassVar[int] = 100

    data: str | Path
    documents: int = 20

    @property
    def provenance(self) -> str:
        return f"{Path(self.data).name}, in the format of princeton-nlp/HELMET (MIT)"

    @property
    def num_positions(self) -> int:
        return min(self.documents, *(len(item.documents) for item in self._all))

    @cached_property
    def _all(self) -> list[Item]:
        by_question: dict[str, Item] = {}
        for line, entry in read_entries(self.data):
            if item := item_of(line, entry):
                by_question.setdefault(item.question, item)
        return list(by_question.values())

    def items(self, limit: int | None, seed: int) -> list[Item]:
        return self._all[:limit]

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        documents = arranged_documents(item, condition)[: self.num_positions]
        if item.details["is_key"]:
            key = f'Copy the value of one key of the JSON object.\n\nKey: "{item.question}"\nValue:'
            return ContextPrompt("JSON data:\n{", documents, f"}}\n\n{key}", ",\n ")
        return ContextPrompt(
            "Answer the question from the documents, in a few words.\n\n",
            documents,
            f"Question: {item.question}\nAnswer:",
        )

    def scores(self, item: Item, condition: Condition, answer: str) -> dict[str, float]:
        return super().scores(item, condition, answer.strip().partition("\n")[0])


def item_of(line: str, entry: dict[str, Any]) -> Item | None:
    """The question of an entry; None unless exactly one document holds the answer."""
    question = get_field(entry, "question", str, line)
    is_key = "num_kvs" in entry
    if is_key:
        pairs = list(PAIR.finditer(get_field(entry, "context", str, line)))
        documents = [Document(pair[0], id=pair[1]) for pair in pairs]
        gold = [at for at, pair in enumerate(pairs) if pair[1] == question]
        answers = as_answers(entry.get("answer"), line)
    else:
        passages = get_field(entry, "ctxs", list, line)
        documents = [Document(p["text"], title=p.get("title")) for p in passages]
        gold = [at for at, p in enumerate(passages) if p["text"] == entry.get("gold_doc")]
        gold = gold or [at for at, p in enumerate(passages) if p.get("has_answer") is True]
        answers = as_answers(entry.get("answers"), line)
    if len(gold) != 1:
        return None
    return Item(
        id=line,
        question=question,
        answers=answers,
        gold=documents[gold[0]],
        others=tuple(documents[: gold[0]] + documents[gold[0] + 1 :]),
        gold_position=gold[0],
        details={"is_key": is_key},
    )
