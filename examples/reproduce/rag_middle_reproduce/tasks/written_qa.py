"""Question answering as PINE asks (arXiv:2407.01100), also in prompts its authors wrote out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from rag_middle import ContextPrompt, Document, FileFormatError
from rag_middle.evaluation import (
    Condition,
    Item,
    MultiDocumentQA,
    arranged_documents,
    get_field,
)
from rag_middle.evaluation.metrics import best_subspan_em
from rag_middle_reproduce.tasks.file_task import FileTask

_BEGIN, _END = "[INST]", "[/INST]"


@dataclass(frozen=True, kw_only=True)
class SentenceQA(MultiDocumentQA):
    """Multi-document question answering in the words of PINE's appendix E.3.

    The prompt ends with the question, and the whole answer is scored, as the authors' code does.
    """

    name: ClassVar[str] = "sentence_qa"
    title: ClassVar[str] = "Question answering in a sentence"
    max_new_tokens: ClassVar[int] = 500

    instruction: str = (
        "Write a high-quality one-sentence answer for the given question using only the provided "
        "search results (some of which might be irrelevant).\n\n"
    )
    whole_answer: bool = True

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        prompt = super().prompt(item, condition)
        asked = prompt.suffix.removesuffix("\nAnswer:")
        return ContextPrompt(prompt.prefix, prompt.documents, asked, prompt.separator)


@dataclass(frozen=True, kw_only=True)
class WrittenQA(FileTask):
    """Natural Questions over documents, in the prompts and orders of the authors' repository.

    A line is ``{"parts": [before, [document, ...], after, end], "answers": [...]}``, the second and
    third member of the authors' own entries (`prepare.py` writes it). ``[INST]`` and ``[/INST]`` in
    the parts stand for the chat template, as in their script; the whole answer is scored.

    Attributes:
        data: JSON lines, one file for each position of the gold document.
    """

    name: ClassVar[str] = "written_qa"
    title: ClassVar[str] = "Question answering, prompts as written"
    source: ClassVar[str] = "wzq016/PINE"
    metrics: ClassVar[tuple[str, ...]] = ("best_subspan_em",)
    max_new_tokens: ClassVar[int] = 500
    by_likelihood: ClassVar[bool] = False

    def read(self, line: str, content: dict[str, Any]) -> Iterator[Item]:
        parts = get_field(content, "parts", list, line)
        if len(parts) != 4 or not isinstance(parts[1], list):
            raise FileFormatError(
                f"{line}: 'parts' should be text, a list of documents, and two more texts; got "
                f"{len(parts)} parts."
            )
        before, documents, after, end = parts
        yield Item(
            id="",
            question=f"{after}{end}".replace(_END, ""),
            answers=tuple(map(str, get_field(content, "answers", list, line))),
            others=tuple(Document(str(text)) for text in documents),
            details={"before": str(before).replace(_BEGIN, "")},
        )

    def prompt(self, item: Item, condition: Condition) -> ContextPrompt:
        documents = arranged_documents(item, condition)
        return ContextPrompt(item.details["before"], documents, item.question, separator="")

    def scores(self, item: Item, condition: Condition, answer: str) -> dict[str, float]:
        return {"best_subspan_em": best_subspan_em(answer.strip(), item.answers)}
