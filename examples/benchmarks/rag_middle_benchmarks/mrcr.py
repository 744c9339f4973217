"""MRCR: which of several alike replies of a long conversation is to be given again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from rag_middle import ContextPrompt, Document
from rag_middle.errors import FileFormatError
from rag_middle.evaluation import (
    CLOSED_BOOK,
    METRICS,
    Condition,
    Item,
    Metric,
    Task,
    arranged_documents,
    get_field,
    read_entries,
)

METRICS["sequence_ratio"] = Metric(name="sequence_ratio", title="Similarity to the right answer")


@dataclass(frozen=True, kw_only=True)
class Mrcr(Task):
    """Questions of MRCR (arXiv:2409.12640), from the rows that OpenAI published.

    Rows have ``prompt`` (messages, as JSON), ``answer`` and ``random_string_to_prepend``. Each
    turn, a request with its reply, is a document, and the whole conversation one prompt. Which
    reply is asked for depends on the order of all ("the second poem about ..."), so no document is
    moved, and shuffled orders are refused.

    Score: Python's `SequenceMatcher` ratio of answer and right reply without the random text before
    them; 0 where the answer lacks that (``grade`` in the data card of openai/mrcr).

    Attributes:
        data: JSON lines or Parquet.
    """

    name: ClassVar[str] = "mrcr"
    version: ClassVar[int] = 2
    title: ClassVar[str] = "MRCR"
    metrics: ClassVar[tuple[str, ...]] = ("sequence_ratio",)
    max_new_tokens: ClassVar[int] = 2048
    controls: ClassVar[tuple[Condition, ...]] = (CLOSED_BOOK,)

    data: str | Path

    @property
    def provenance(self) -> str:
        return f"{Path(self.data).name}, in the format of openai/mrcr (MIT)"

    @property
    def num_positions(self) -> int:
        return 0

    @cached_property
    def _all(self) -> list[Item]:
        return [item_of(line, entry) for line, entry in read_entries(self.data)]

    def items(self, limit: int | None, seed: int) -> list[Item]:
        return self._all[:limit]

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        return ContextPrompt(
            item.details["before"],
            arranged_documents(item, condition),
            f"User: {item.question}\n\nAssistant:",
            "\n\n",
        )

    def scores(self, item: Item, condition: Condition, answer: str) -> dict[str, float]:
        start, right = item.details["start"], item.answers[0]
        text = answer.lstrip()
        if not text.startswith(start):
            return {"sequence_ratio": 0.0}
        compared = SequenceMatcher(None, text.removeprefix(start), right.removeprefix(start))
        return {"sequence_ratio": compared.ratio()}


def item_of(line: str, entry: dict[str, Any]) -> Item:
    """The conversation of a row; what precedes the first reply's request are examples."""
    messages = json.loads(get_field(entry, "prompt", str, line))
    texts = [message["content"] for message in messages]
    roles = [message["role"] for message in messages]
    first = max(roles.index("assistant") - 1, 0) if "assistant" in roles else 0
    turns = (len(roles) - first) // 2
    if not turns or roles[first:] != ["user", "assistant"] * turns + ["user"]:
        raise FileFormatError(f"{line}: 'prompt' should be requests and replies in turn.")
    pairs = zip(texts[first:-1:2], texts[first + 1 :: 2], strict=True)
    return Item(
        id=line,
        question=texts[-1],
        answers=(get_field(entry, "answer", str, line).lstrip(),),
        others=tuple(Document(f"User: {said}\n\nAssistant: {reply}") for said, reply in pairs),
        details={
            "before": "".join(f"{text}\n\n" for text in texts[:first]),
            "start": get_field(entry, "random_string_to_prepend", str, line),
        },
    )
