"""LongBench v2: four choices about one long context."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from rag_middle.documents import Document
from rag_middle.errors import EvaluationDataError
from rag_middle.evaluation.conditions import Condition, Item
from rag_middle.evaluation.tasks.data_files import get_field
from rag_middle.evaluation.tasks.published import PublishedTask, cut_passages, published_item

__all__ = ["LongBenchV2"]

_PASSAGES = 20
_LETTERS = "ABCD"
_CHOSEN = tuple(
    re.compile(rf"The correct answer is {letter}") for letter in (r"\(([A-D])\)", r"([A-D])")
)


@dataclass(frozen=True, kw_only=True)
class LongBenchV2(PublishedTask):
    """Questions of LongBench v2 (arXiv:2412.15204), ``data.json`` or lines of its fields.

    An entry has ``question``, ``choice_A`` to ``choice_D``, ``answer`` (a letter) and ``context``.
    There are no documents and no gold one: the context is cut into passages (20 if `documents` does
    not say otherwise), so that methods about documents have some; positions cannot be measured,
    and shuffled orders are refused. As in the benchmark, a prompt that is too long loses its
    middle, and the answer is asked for in the form "The correct answer is (A)". The other words of
    the prompt are this package's.

    Score: ``accuracy``; an answer that names no letter in that form, asterisks aside, is wrong.
    """

    name: ClassVar[str] = "longbench_v2"
    version: ClassVar[int] = 1
    title: ClassVar[str] = "LongBench v2"
    source: ClassVar[str] = "THUDM/LongBench (version 2, MIT)"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    max_new_tokens: ClassVar[int] = 128
    cuts_middle: ClassVar[bool] = True
    fixed_length: ClassVar[bool] = True
    fixed_order: ClassVar[bool] = True

    instruction: str = "Read the text and answer the question about it.\n\n"

    def _items(self, number: int, line: str, entry: dict[str, Any]) -> Iterable[Item]:
        letter = get_field(entry, "answer", str, line)
        if letter not in _LETTERS or len(letter) != 1:
            raise EvaluationDataError(
                f"{line}: 'answer' should be one of the letters A, B, C and D, got {letter!r}."
            )
        choices = [get_field(entry, f"choice_{name}", str, line).strip() for name in _LETTERS]
        shown = "".join(
            f"({name}) {choice}\n" for name, choice in zip(_LETTERS, choices, strict=True)
        )
        question = get_field(entry, "question", str, line).strip()
        context = get_field(entry, "context", str, line).strip()
        passages, separator = cut_passages(context, self.documents or _PASSAGES, line)
        yield published_item(
            number,
            f"{question}\n{shown}".rstrip(),
            [f"The correct answer is ({letter})"],
            [Document(passage) for passage in passages],
            None,
            prefix=self.instruction,
            suffix=(
                f"\nQuestion: {question}\n{shown}\n"
                'Answer in this form: "The correct answer is (letter)".'
            ),
            separator=separator,
            letter=letter,
        )

    def scores(self, item: Item, condition: Condition, answer: str) -> dict[str, float]:
        return {"accuracy": float(_letter(answer) == item.details["letter"])}


def _letter(answer: str) -> str | None:
    """The letter that an answer names.

    Source: ``extract_answer`` in ``pred.py`` of THUDM/LongBench.
    """
    text = answer.replace("*", "")
    for pattern in _CHOSEN:
        if match := pattern.search(text):
            return match[1]
    return None
