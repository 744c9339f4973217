"""HELMET's files: retrieved passages, a JSON object of keys, needles."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal

from rag_middle.documents import Document
from rag_middle.errors import EvaluationConfigError, EvaluationDataError
from rag_middle.evaluation.conditions import Condition, Item
from rag_middle.evaluation.tasks.data_files import as_answers, as_document, flagged, get_field
from rag_middle.evaluation.tasks.published import (
    PublishedTask,
    cut_passages,
    one_holding,
    published_item,
)

__all__ = ["Helmet"]

_PASSAGES = 20
_PAIR = re.compile(r'"((?:[^"\\]|\\.)*)": "((?:[^"\\]|\\.)*)"')
_Kind = Literal["rag", "json_kv", "needles"]
#: Of ``configs/rag.yaml`` and ``configs/recall.yaml``.
_MAX_NEW_TOKENS: dict[_Kind, int] = {"rag": 20, "json_kv": 100, "needles": 100}
_INSTRUCTIONS: dict[_Kind, str] = {
    "rag": "Answer the question from the documents, in a few words.\n\n",
    "json_kv": "",
    "needles": "Special magic {type} are hidden in the text below. You will be asked for them.\n\n",
}
_ASKED: dict[_Kind, str] = {
    "rag": "Question: {question}\nAnswer:",
    "json_kv": 'Copy the value of one key of the JSON object above.\n\nKey: "{question}"\nValue:',
    "needles": "Which special magic {type} does the text above give for {question}?\nAnswer:",
}


@dataclass(frozen=True, kw_only=True)
class Helmet(PublishedTask):
    """Questions of HELMET (arXiv:2410.02694), from its data files.

    Three kinds, told by their fields: retrieval-augmented question answering (``question``,
    ``answers``, ``ctxs``), one key of a JSON object (``context``, ``question``, ``answer``,
    ``num_kvs``), and RULER's needles in HELMET's fields (``context``, ``query``,
    ``type_needle_v``, and ``answer`` or ``outputs``). Files of its other tasks are refused.

    The gold passage is the one whose text is ``gold_doc``, or else the only one with
    ``has_answer``; that of a key is its pair; that of a needle the one of 20 passages that alone
    holds the answer. The files repeat questions with the gold document at several depths: where
    it is moved, each is asked once.

    Prompts are in this package's words and without demonstrations, HELMET's scores with two of
    them for retrieval and keys: `instruction` and `asked` take its words.

    Score: ``best_subspan_em``, which is HELMET's ``substring_exact_match``, of the first line
    where passages were retrieved; of needles ``string_match_all``, its ``ruler_recall``.

    Attributes:
        instruction: before the documents; None for this package's.
        asked: after them, with ``{question}`` in it; None for this package's.
    """

    name: ClassVar[str] = "helmet"
    version: ClassVar[int] = 2
    title: ClassVar[str] = "HELMET"
    source: ClassVar[str] = "princeton-nlp/HELMET (MIT)"
    metrics: ClassVar[tuple[str, ...]] = ("best_subspan_em",)
    repeats_depths: ClassVar[bool] = True

    instruction: str | None = None
    asked: str | None = None

    def __post_init__(self) -> None:
        if self.asked is not None and self.asked.count("{question}") != 1:
            raise EvaluationConfigError(
                f"{self.name}: asked must hold {{question}} once, got {self.asked!r}."
            )
        super().__post_init__()

    def _set_kind(self, line: str, entry: dict[str, Any]) -> None:
        kind = _kind(line, entry)
        self._set(title=f"HELMET ({kind})", max_new_tokens=_MAX_NEW_TOKENS[kind])
        if kind == "needles":
            values = entry.get("answer", entry.get("outputs"))
            single = not isinstance(values, list) or len(values) == 1
            self._set(metrics=("string_match_all",), by_likelihood=single, fixed_length=True)

    def _items(self, number: int, line: str, entry: dict[str, Any]) -> Iterable[Item]:
        kind = _kind(line, entry)
        if self.title != f"HELMET ({kind})":
            raise EvaluationDataError(
                f"{line} is of another kind ({kind}) than the first line. Give each of HELMET's "
                "files by itself."
            )
        instruction = _INSTRUCTIONS[kind] if self.instruction is None else self.instruction
        asked = _ASKED[kind] if self.asked is None else self.asked
        before, after, separator = "", "", "\n\n"
        around = asked.split("{question}")
        if kind == "rag":
            question = get_field(entry, "question", str, line)
            answers = as_answers(get_field(entry, "answers", list, line), f"{line}: 'answers'")
            documents, gold = _retrieved(line, entry)
        elif kind == "json_kv":
            question = get_field(entry, "question", str, line)
            answers = as_answers(entry.get("answer"), f"{line}: 'answer'")
            before, documents, separator, after = _pairs(line, entry)
            after += "\n\n"
            keys = [document.id for document in documents]
            if keys.count(question) != 1:
                raise EvaluationDataError(
                    f"{line}: 'context' should hold the key {question!r} of 'question' once, and "
                    f"holds it {keys.count(question)} times."
                )
            gold = keys.index(question)
        else:
            question = get_field(entry, "query", str, line)
            values = entry.get("answer", entry.get("outputs"))
            answers = as_answers(values, f"{line}: 'answer' or 'outputs'")
            context = get_field(entry, "context", str, line).strip()
            passages, separator = cut_passages(context, self.documents or _PASSAGES, line)
            documents = [Document(passage) for passage in passages]
            gold = one_holding(documents, answers) if len(answers) == 1 else None
            needle_type = get_field(entry, "type_needle_v", str, line)
            instruction = instruction.replace("{type}", needle_type)
            around = [part.replace("{type}", needle_type) for part in around]
        yield published_item(
            number,
            question,
            answers,
            documents,
            gold,
            prefix=instruction + before,
            suffix=after + question.join(around),
            separator=separator,
        )

    def scores(self, item: Item, condition: Condition, answer: str) -> dict[str, float]:
        first_line_only = self.title == "HELMET (rag)"
        text = answer.strip().partition("\n")[0] if first_line_only else answer
        return super().scores(item, condition, text)


def _kind(line: str, entry: dict[str, Any]) -> _Kind:
    if "ctxs" in entry and "answers" in entry:
        return "rag"
    if "num_kvs" in entry:
        return "json_kv"
    if "type_needle_v" in entry:
        return "needles"
    raise EvaluationDataError(
        f"{line} is of none of HELMET's kinds that are read: retrieval ('ctxs' and 'answers'), "
        "keys ('num_kvs') and needles ('type_needle_v'). Re-ranking, citations, summaries and "
        f"the rest need HELMET's own code. Fields: {', '.join(entry) or 'none'}."
    )


def _retrieved(line: str, entry: dict[str, Any]) -> tuple[list[Document], int | None]:
    """The passages as HELMET shows them, and the position of the gold one."""
    contexts = get_field(entry, "ctxs", list, line)
    read = [as_document(context, f"{line}: 'ctxs'") for context in contexts]
    having = flagged(contexts, "has_answer")
    named = [index for index, document in enumerate(read) if document.text == entry.get("gold_doc")]
    golds: Sequence[int] = named or having
    documents = [
        Document(
            f"Document (Title: {document.title}): {document.text}"
            if document.title
            else f"Document: {document.text}",
            id=document.id or document.title,
        )
        for document in read
    ]
    return documents, golds[0] if len(golds) == 1 else None


def _pairs(line: str, entry: dict[str, Any]) -> tuple[str, list[Document], str, str]:
    """The text before the pairs of a JSON object, they, what separates them, and the text after."""
    context = get_field(entry, "context", str, line)
    pairs = list(_PAIR.finditer(context))
    documents = [Document(pair[0], id=pair[1]) for pair in pairs]
    separators = {context[pair.end() : following.start()] for pair, following in pairwise(pairs)}
    if len(pairs) < 2 or len(separators) != 1:
        raise EvaluationDataError(
            f"{line}: 'context' should hold a JSON object of two or more pairs of texts, written "
            f'as "key": "value" with the same separator between all; it holds {len(pairs)} pairs '
            f"and {len(separators)} separators."
        )
    return (
        context[: pairs[0].start()],
        documents,
        separators.pop(),
        context[pairs[-1].end() :].rstrip(),
    )
