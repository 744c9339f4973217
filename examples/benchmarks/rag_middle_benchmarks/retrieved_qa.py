"""Questions answered from what a real retriever finds: no gold document is known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from rag_middle.documents import ContextPrompt
from rag_middle.evaluation.conditions import CLOSED_BOOK, Condition, Item
from rag_middle.evaluation.tasks.base import Task, question_prompt, require_one_of, require_whole
from rag_middle.evaluation.tasks.data_files import answers_of, get_field, read_entries


@dataclass(frozen=True, kw_only=True)
class RetrievedQA(Task):
    """Questions with answers, and an index to find documents in.

    What users of retrieval-augmented generation get: the document with the answer may be missing,
    or there may be several. So there are no gold positions; methods are compared as a whole, and
    shuffled orders show how often answers depend on the order.

    Attributes:
        data: JSON lines with ``question`` and ``answers`` (or ``answer``).
        index: a folder that ``rag-middle index`` wrote.
        documents: how many to retrieve.
        best: where the best document goes: ``"first"`` or ``"last"``.
        embedder: folder or hub name of the index's embedder; None for the default.
        instruction: before the documents.
    """

    name: ClassVar[str] = "retrieved_qa"
    version: ClassVar[int] = 2
    title: ClassVar[str] = "Questions over retrieved documents"
    controls: ClassVar[tuple[Condition, ...]] = (CLOSED_BOOK,)

    data: str | Path
    index: str | Path
    documents: int = 10
    best: Literal["first", "last"] = "first"
    embedder: str | None = None
    instruction: str = "Answer the question from the documents.\n\n"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole(self.name, 1, documents=self.documents)
        require_one_of(self.name, ("first", "last"), best=self.best)

    @property
    def provenance(self) -> str:
        return f"{Path(self.data).name}, documents from the index {Path(self.index).name}"

    @property
    def num_positions(self) -> int:
        return 0

    def items(self, limit: int | None, seed: int) -> list[Item]:
        from rag_middle.retrieval import FaissIndex, Retriever, SentenceTransformerEmbedder

        saved = FaissIndex.load(self.index, SentenceTransformerEmbedder(self.embedder))
        retrieve = Retriever(index=saved, top_k=self.documents)
        items = []
        for index, (line, content) in enumerate(list(read_entries(self.data))[:limit]):
            question = get_field(content, "question", str, line)
            documents = retrieve(question)
            items.append(
                Item(
                    id=f"{index}",
                    question=question,
                    answers=answers_of(content, line),
                    others=tuple(documents if self.best == "first" else reversed(documents)),
                )
            )
        return items

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        return question_prompt(self.instruction, item, condition)
