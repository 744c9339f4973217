"""LooGLE's timeline questions (arXiv:2311.04939)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from rag_middle import ContextPrompt, Document, FileFormatError
from rag_middle.evaluation import Condition, Item, arranged_documents, get_field
from rag_middle_reproduce.tasks.file_task import ContextTask
from rag_middle_reproduce.tasks.metrics import DEVIATIONS, order_deviations

#: The type of these questions in the hub's data, in the repository's sample and in its outputs.
_TYPES = ("timeline_reorder", "timeline reorder", "时间线")
_ROMAN = {name: value for value, name in enumerate("I II III IV V VI VII VIII IX X".split(), 1)}
_NUMERAL = re.compile(r"(?<![\w.])(\d+|[IVX]+)(?![\w])(?!\.\d)")


@dataclass(frozen=True, kw_only=True)
class TimelineOrder(ContextTask):
    """Put the numbered events of a long text into the order of time.

    Lines are documents of LooGLE's long-dependency questions: ``input`` (the text) and
    ``qa_pairs``, a list or, as published, a string with a Python literal of one, of ``{"Q", "A",
    "type", "S"}``. Questions of other types are left out. Orders are read in Arabic numbers, which
    the data has, and in Roman ones, which the benchmark's outputs have.

    An answer counts by the order in which it first names each event: whether that is right, and by
    LooGLE's scores, negated so that higher is better; see `order_deviations` for what is followed.
    """

    name: ClassVar[str] = "timeline_order"
    title: ClassVar[str] = "Timeline reordering"
    source: ClassVar[str] = "bigai-nlco/LooGLE, longdep_qa (CC BY-SA 4.0)"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy", *DEVIATIONS)
    max_new_tokens: ClassVar[int] = 500

    def read(self, line: str, content: dict[str, Any]) -> Iterator[Item]:
        for index, question in enumerate(_pairs(line, content)):
            if str(question.get("type")).lower() not in _TYPES:
                continue
            where, answer = f"{line}, question {index}", str(question.get("A"))
            events = _order(answer)
            if len(events) < 2 or sorted(events) != list(range(1, len(events) + 1)):
                raise FileFormatError(
                    f"{where}: 'A' should be an order of events such as '2,1,3', got {answer!r}."
                )
            yield Item(
                id="",
                question=get_field(question, "Q", str, where),
                answers=(answer,),
                others=(Document(get_field(content, "input", str, where)),),
            )

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        return ContextPrompt(
            "Please answer the question based on the long texts below. \n",
            arranged_documents(item, condition),
            f"\nQuestion: {item.question}\nAnswer: ",
            separator="",
        )

    def scores(self, item: Item, condition: Condition, answer: str) -> dict[str, float]:
        wanted = _order(item.answers[0])
        stated = [event for event in _order(answer) if event in wanted]
        stated = list(dict.fromkeys(stated))
        return {"accuracy": float(stated == wanted), **order_deviations(stated, wanted)}


def _order(text: str) -> list[int]:
    """The numbers of a text, 7 and VII alike."""
    numerals = [match[1] for match in _NUMERAL.finditer(text)]
    return [int(n) if n.isdigit() else _ROMAN[n] for n in numerals if n.isdigit() or n in _ROMAN]


def _pairs(line: str, content: dict[str, Any]) -> list[dict[str, Any]]:
    """The questions of a document, of all types."""
    pairs = content.get("qa_pairs")
    if isinstance(pairs, str):
        try:
            pairs = ast.literal_eval(pairs)
        except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
            raise FileFormatError(
                f"{line}: 'qa_pairs' should be a list, or a string with one as Python writes it "
                f"({error})."
            ) from error
    if not isinstance(pairs, list) or not all(isinstance(pair, dict) for pair in pairs):
        raise FileFormatError(
            f"{line}: 'qa_pairs' should be a list of questions, got {type(pairs).__name__}."
        )
    return pairs
