"""The user's own questions, and multi-document question answering by gold position."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from rag_middle.documents import ContextPrompt, Document
from rag_middle.errors import FileFormatError
from rag_middle.evaluation.conditions import Condition, Item, distinct_questions
from rag_middle.evaluation.metrics import best_subspan_em
from rag_middle.evaluation.tasks.base import Task, question_prompt, require_one_of, require_whole
from rag_middle.evaluation.tasks.data_files import first_entry, read_questions

if TYPE_CHECKING:
    from rag_middle.retrieval import Embedder

#: ``"random"``: any documents; ``"hard"``: those most like the question.
Distractors = Literal["random", "hard"]


@dataclass(frozen=True, kw_only=True)
class OwnQuestions(Task):
    """Questions from a file, each with the document that answers it.

    A line has ``question``, ``answers`` (or ``answer``), and its documents in one of the forms of
    `documents_of`. What is missing to `documents` is drawn from the gold documents of the other
    lines; none that holds an answer is taken.

    Attributes:
        data: the file, plain or gzipped.
        documents: in a prompt, the gold one included; None for as many as the first line has,
            or 10.
        distractors: ``"random"``, or ``"hard"``: most like the question, by the 0-based line
            numbers in its field ``nearest``, else by an embedder (extra ``demo``).
        instruction: before the documents.
    """

    name: ClassVar[str] = "own_questions"
    version: ClassVar[int] = 5
    title: ClassVar[str] = "Questions of a file"

    data: str | Path
    documents: int | None = None
    distractors: Distractors = "random"
    instruction: str = "Answer the question from the documents.\n\n"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of(self.name, get_args(Distractors), distractors=self.distractors)
        if self.documents is None:
            count = len(self._lines[0].documents)
            object.__setattr__(self, "documents", count if count > 1 else 10)
        require_whole(self.name, 2, documents=self.documents)

    @property
    def provenance(self) -> str:
        return Path(self.data).name

    @property
    def num_positions(self) -> int:
        assert self.documents is not None  # set when made
        return self.documents

    @cached_property
    def _lines(self) -> list[Item]:
        return read_questions(self.data, self._shown)

    @cached_property
    def _golds(self) -> list[Document]:
        """The gold document of each line."""
        return [line.gold for line in self._lines if line.gold]

    def items(self, limit: int | None, seed: int) -> list[Item]:
        items = (self._filled(line, seed) for line in self._lines)
        return list(islice(distinct_questions(items), limit))

    def _filled(self, line: Item, seed: int) -> Item:
        """A question with as many documents as a prompt has."""
        others, gold_position = line.others, line.gold_position
        if len(others) < self.num_positions - 1:
            rng = random.Random(f"{self.name} {seed} {line.id}")
            drawn = self._drawn(line, rng)
            # The most alike must not always stand first: distractors have no positions.
            rng.shuffle(drawn)
            others, gold_position = (*others, *drawn), 0
        last = self.num_positions - 1
        return replace(line, others=others[:last], gold_position=min(gold_position, last))

    def _drawn(self, line: Item, rng: random.Random) -> list[Document]:
        """The documents that a line lacks: the first candidates that hold no answer.

        Neither in title nor in text (`best_subspan_em`).

        Raises:
            FileFormatError: there are not so many.
            MissingExtraError, RagMiddleError: for hard ones, the embedder cannot be had.
        """
        near = line.details["nearest"] if self.distractors == "hard" else ()
        hardest = [self._golds[other] for other in near if 0 <= other < len(self._golds)]
        count = self.num_positions - len(line.documents)
        taken = {document.text for document in line.documents}
        drawn: list[Document] = []
        for document in chain(hardest, self._ranked_pool(line.question, rng)):
            if document.text in taken or best_subspan_em(document.render(), line.answers):
                continue
            taken.add(document.text)
            drawn.append(document)
            if len(drawn) == count:
                return drawn
        raise FileFormatError(
            f"{count} documents are needed that do not answer {line.question!r}, and there are "
            f"{len(drawn)} among {len(self._pool)}. Ask for {len(line.documents) + len(drawn)} or "
            "fewer with documents= (--documents), or give more data."
        )

    @cached_property
    def _pool(self) -> list[Document]:
        """Documents to draw distractors from; of equal texts, the first one is kept."""
        by_text: dict[str, Document] = {}
        for gold in self._golds:
            by_text.setdefault(gold.text, gold)
        return list(by_text.values())

    def _ranked_pool(self, question: str, rng: random.Random) -> Iterator[Document]:
        """The pool in random order, or those most like the question first; drawn when asked for."""
        if self.distractors == "random":
            documents = list(self._pool)
            rng.shuffle(documents)
            yield from documents
            return
        from rag_middle.retrieval.embedders import embed_questions

        embedder, vectors = self._embedded_pool
        similarity = vectors @ embed_questions(embedder, [question])[0]
        for index in np.argsort(-similarity, kind="stable"):
            yield self._pool[int(index)]

    @cached_property
    def _embedded_pool(self) -> tuple[Embedder, NDArray[np.float32]]:
        from rag_middle.retrieval import SentenceTransformerEmbedder, TruncatedTextWarning

        embedder = SentenceTransformerEmbedder()
        with warnings.catch_warnings():  # what begins like the question is near enough
            warnings.simplefilter("ignore", TruncatedTextWarning)
            return embedder, embedder.embed([document.render() for document in self._pool])

    def _shown(self, document: Document) -> Document:
        """A document as the prompt shows it."""
        return document

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        return question_prompt(self.instruction, item, condition)


@dataclass(frozen=True, kw_only=True)
class MultiDocumentQA(OwnQuestions):
    """Multi-document question answering of the Lost in the Middle benchmark (arXiv:2307.03172).

    Lines are the benchmark's own (``"question", "answers", "ctxs"``, one of them with
    ``"isgold": true``), whose distractors were retrieved for the question, or ``{"question",
    "answers", "title", "text"}`` (a question and its gold passage), where the other passages are
    drawn from the other lines: other distractors than the benchmark's.

    Instruction, question and score are the benchmark's: the first line of the answer counts, as
    one that goes on would copy the documents. A document reads "Document (Title: ...) ...".

    Attributes:
        ranks: write the benchmark's prompt letter by letter, "Document [3](Title: ...) ...". By
            default the rank is left out, so that a document reads the same at every position.
        whole_answer: score all of the answer, and not its first line.
    """

    name: ClassVar[str] = "multi_document_qa"
    version: ClassVar[int] = 5
    title: ClassVar[str] = "Multi-document question answering"
    max_new_tokens: ClassVar[int] = 100

    instruction: str = (
        "Write a high-quality answer for the given question using only the provided search "
        "results (some of which might be irrelevant).\n\n"
    )
    ranks: bool = False
    whole_answer: bool = False

    @property
    def provenance(self) -> str:
        _, content = first_entry(self.data)
        drawn = "" if "ctxs" in content else "; distractors are not the benchmark's"
        return (
            f"{Path(self.data).name}; prompt and score after nelson-liu/lost-in-the-middle (MIT)"
            f"{drawn}"
        )

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        prompt = super().prompt(item, condition)
        if not self.ranks:
            return prompt
        ranked = [
            replace(document, text=_ranked(document.text, rank))
            for rank, document in enumerate(prompt.documents, start=1)
        ]
        return ContextPrompt(prompt.prefix, ranked, f"\n{prompt.suffix}", separator="\n")

    def scores(self, item: Item, condition: Condition, answer: str) -> dict[str, float]:
        text = answer.strip()
        return super().scores(
            item, condition, text if self.whole_answer else text.partition("\n")[0]
        )

    def _shown(self, document: Document) -> Document:
        title = f" (Title: {document.title})" if document.title else ""
        return Document(f"Document{title} {document.text}", id=document.id or document.title)


def _ranked(text: str, rank: int) -> str:
    """A passage with its 1-based rank, as the benchmark writes it."""
    rest = text.removeprefix("Document")
    return f"Document [{rank}]{rest.removeprefix(' ') if rest.startswith(' (') else rest}"
