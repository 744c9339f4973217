"""The user's own questions, and multi-document question answering by gold position."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, get_args

from rag_middle.documents import ContextPrompt, Document
from rag_middle.errors import EvaluationConfigError, EvaluationDataError
from rag_middle.evaluation.conditions import Condition, arranged_documents
from rag_middle.evaluation.items import Item
from rag_middle.evaluation.tasks.base import Task, require_whole
from rag_middle.evaluation.tasks.distractors import Distractors, Pool
from rag_middle.evaluation.tasks.reading import as_answers, as_document, field, lines_of

__all__ = ["MultiDocumentQA", "OwnQuestions"]

_Line = tuple[str, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class OwnQuestions(Task):
    """Questions from a file of JSON lines, each with the document that answers it.

    A line has ``question``, ``answers`` (or ``answer``), and its documents in one of three forms::

        {"gold": "...", "distractors": ["...", ...]}     a document is a text, or an object with
        {"documents": ["...", ...], "gold": 3}           "text", "title" and "id"
        {"title": "...", "text": "..."}                  the gold document itself

    What is missing to `documents` is drawn from `corpus`, or without one from the gold documents of
    the other lines; none that holds an answer is taken.

    Attributes:
        data: the file, plain or gzipped.
        documents: in a prompt, the gold one included; None for as many as the first line has.
        corpus: more documents, a file of JSON lines with ``text`` and perhaps ``title``.
        distractors: ``"random"``, or ``"hard"``: most like the question, by `embedder`.
        embedder: folder or hub name of a sentence-transformers model; None for one that needs no
            network (extra ``demo``).
        instruction: before the documents.
        asked: after them, with ``{question}`` in it.
    """

    name: ClassVar[str] = "own_questions"
    version: ClassVar[int] = 1
    title: ClassVar[str] = "Questions of a file"

    data: str | Path
    documents: int | None = None
    corpus: str | Path | None = None
    distractors: Distractors = "random"
    embedder: str | None = None
    instruction: str = "Answer the question from the documents.\n\n"
    asked: str = "Question: {question}\nAnswer:"

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", Path(self.data))
        if self.corpus is not None:
            object.__setattr__(self, "corpus", Path(self.corpus))
        if self.distractors not in get_args(Distractors):
            raise EvaluationConfigError(
                f"{self.name}: distractors must be one of {', '.join(get_args(Distractors))}, got "
                f"{self.distractors!r}."
            )
        if self.asked.count("{question}") != 1:
            raise EvaluationConfigError(
                f"{self.name}: asked must hold {{question}} once, got {self.asked!r}."
            )
        if self.documents is None:
            place, first = next(lines_of(self.data), ("", {}))
            if not first:
                raise EvaluationDataError(f"The data file {str(self.data)!r} has no lines.")
            _, given, _ = self._documents(place, first)
            object.__setattr__(self, "documents", len(given) if len(given) > 1 else 20)
        require_whole(self.name, 2, documents=self.documents)

    @property
    def provenance(self) -> str:
        return Path(self.data).name

    @property
    def places(self) -> int:
        assert self.documents is not None  # set when made
        return self.documents

    def items(self, limit: int | None, seed: int) -> list[Item]:
        lines = list(lines_of(self.data))
        pool: Pool | None = None
        items = []
        for index, (place, content) in enumerate(lines[:limit]):
            gold, documents, at = self._documents(place, content)
            others = [each for each in documents if each is not gold]
            rng = random.Random(f"{self.name} {seed} {index}")
            question = str(field(content, "question", str, place))
            answers = as_answers(_answers(content, place), place)
            if len(others) < self.places - 1:
                pool = pool or self._pool(lines)
                more = pool.draw(
                    self.places - 1 - len(others),
                    question=question,
                    answers=answers,
                    without=documents,
                    rng=rng,
                )
                others, at = others + more, 0
            items.append(
                Item(
                    id=f"{index}",
                    question=question,
                    answers=answers,
                    gold=gold,
                    others=tuple(others[: self.places - 1]),
                    given=min(at, self.places - 1),
                )
            )
        return items

    def _documents(
        self, place: str, content: dict[str, Any]
    ) -> tuple[Document, list[Document], int]:
        """The gold document, all documents of the line, and the gold one's place."""
        if "documents" in content:
            documents = [
                as_document(each, place) for each in field(content, "documents", list, place)
            ]
            at = field(content, "gold", int, place)
            if not 0 <= at < len(documents):
                raise EvaluationDataError(
                    f"{place}: 'gold' should be the 0-based place of one of {len(documents)} "
                    f"documents, got {at}."
                )
            return documents[at], documents, at
        if "gold" in content:
            gold = as_document(content["gold"], place)
        elif "text" in content:
            gold = as_document({key: content.get(key) for key in ("text", "title", "id")}, place)
        else:
            raise EvaluationDataError(
                f"{place} names no gold document: give 'gold' (a document), or 'documents' and "
                "'gold' (a 0-based place), or 'text'."
            )
        others = content.get("distractors") or []
        if not isinstance(others, list):
            raise EvaluationDataError(
                f"{place}: 'distractors' should be a list of documents, got "
                f"{type(others).__name__}."
            )
        others = [as_document(each, place) for each in others]
        return gold, [gold, *others], 0

    def _pool(self, lines: list[_Line]) -> Pool:
        if self.corpus is not None:
            documents = [as_document(content, place) for place, content in lines_of(self.corpus)]
            documents = [self._shown(each) for each in documents]
        else:
            documents = [self._documents(place, content)[0] for place, content in lines]
        return Pool(documents, self.distractors, self.embedder)

    def _shown(self, document: Document) -> Document:
        """A document of the corpus as the prompt shows it."""
        return document

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        # replace() and not format(): questions may hold braces.
        return ContextPrompt(
            self.instruction,
            arranged_documents(item, condition),
            self.asked.replace("{question}", item.question),
        )


def _answers(content: dict[str, Any], place: str) -> Any:
    if "answers" not in content and "answer" not in content:
        field(content, "answers", list, place)  # raises, with the nearest name
    return content.get("answers", content.get("answer"))


@dataclass(frozen=True, kw_only=True)
class MultiDocumentQA(OwnQuestions):
    """Multi-document question answering of the Lost in the Middle benchmark (arXiv:2307.03172).

    Lines are ``{"question", "answers", "title", "text"}`` (a question and its gold passage; the
    other passages are drawn) or in that benchmark's own format (``"question", "answers", "ctxs"``,
    one of them with ``"isgold": true``). Instruction, question and score are the benchmark's; a
    document reads "Document (Title: ...) ..." without the benchmark's rank "[3]", so that it reads
    the same wherever it stands.
    """

    name: ClassVar[str] = "multi_document_qa"
    title: ClassVar[str] = "Multi-document question answering"
    max_new_tokens: ClassVar[int] = 100

    instruction: str = (
        "Write a high-quality answer for the given question using only the provided search "
        "results (some of which might be irrelevant).\n\n"
    )

    @property
    def provenance(self) -> str:
        return f"{Path(self.data).name}; prompt and score after nelson-liu/lost-in-the-middle (MIT)"

    def _documents(
        self, place: str, content: dict[str, Any]
    ) -> tuple[Document, list[Document], int]:
        if "ctxs" not in content:
            gold, documents, at = super()._documents(place, content)
            shown = [self._shown(each) for each in documents]
            return shown[documents.index(gold)], shown, at
        contexts = field(content, "ctxs", list, place)
        golds = [
            at
            for at, each in enumerate(contexts)
            if isinstance(each, dict) and each.get("isgold") is True
        ]
        if len(golds) != 1:
            raise EvaluationDataError(
                f"{place}: one of 'ctxs' should have 'isgold': true, {len(golds)} have."
            )
        shown = [self._shown(as_document(each, place)) for each in contexts]
        return shown[golds[0]], shown, golds[0]

    def _shown(self, document: Document) -> Document:
        title = f" (Title: {document.title})" if document.title else ""
        return Document(f"Document{title} {document.text}", id=document.id or document.title)
